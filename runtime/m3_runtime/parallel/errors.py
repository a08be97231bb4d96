"""What ends a group of ranks, in one line for whoever reads it."""

from __future__ import annotations


class RankLost(RuntimeError):
    """A rank died, failed or hung, and all others were ended. The text names it and says what to do."""


class CutOff(RuntimeError):
    """An operation failed because another rank left it: a consequence, and never the reason that is told."""


def told(error: BaseException) -> str:
    """An error as one line."""
    text = " ".join(str(error).split())
    if not text or not isinstance(error, (OSError, RuntimeError, ValueError)):  # whose texts are meant to be read
        text = f"{type(error).__name__}: {text}"
    if "out of memory" in text.lower():
        return "out of memory: give a smaller context, fewer cache tokens, or more GPUs (m3 models show says what fits)"
    return text if len(text) <= 300 else text[:297] + "..."
