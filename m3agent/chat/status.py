"""The line at the bottom of a chat."""

from __future__ import annotations

from rich.text import Text

from m3agent.chat.meter import Meter
from m3agent.llm.protocol import ModelInfo
from m3agent.ui.clean import one_line


def status_line(info: ModelInfo, mode: str, meter: Meter, *, jobs: int = 0) -> Text:
    """Which model answers, what it may do, how full its window is, what of it was cached, how fast it writes,
    and how many commands go on in the background."""
    parts = [Text(one_line(info.name, 30), "strong"), Text(mode, f"mode.{mode}")]
    if meter.context_tokens and info.context_tokens:
        share = 100 * meter.context_tokens / info.context_tokens
        parts.append(Text(f"{share:.0f} % of {short(info.context_tokens)}"))
    elif info.context_tokens:
        parts.append(Text(f"window {short(info.context_tokens)}"))
    if meter.cached_share is not None:
        parts.append(Text(f"{int(100 * meter.cached_share)} % cached"))
    if meter.tokens_per_s:
        parts.append(Text(f"{meter.tokens_per_s:.0f} tokens/s"))
    if jobs:
        parts.append(Text(f"{jobs} in the background", "runs"))
    line = Text(" · ", "quiet").join(parts)
    line.stylize("quiet")
    return line


def short(tokens: int) -> str:
    """A count in few characters: 950, 12.3k, 1M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if tokens >= size:
            return f"{tokens / size:.1f}".removesuffix(".0") + unit
    return str(tokens)
