"""What happens while a turn is answered, as values; the reasoning, text and calls themselves come from the parser."""

from __future__ import annotations

import dataclasses
from typing import Literal

from m3_runtime.chat.parser import BadCall, Call, TextDelta, ThinkDelta


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of one turn; `cached_tokens` of the prompt were not computed again."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefillProgress:
    """How much of the prompt has been read, cached tokens included."""

    done_tokens: int
    total_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One of several alternative calls, best first; `logprob` as in m3_runtime.request.Hypothesis.

    `proposed` calls are the caller's, scored over the whole vocabulary; they come after the model's own, best first.
    """

    call: Call
    logprob: float
    proposed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finish:
    """The end of a turn. `reused_tokens` ids of the prompt were kept from earlier turns; `note` says why not more."""

    reason: Literal["stop", "tool_calls", "length"]
    usage: Usage
    reused_tokens: int = 0
    note: str = ""


@dataclasses.dataclass(frozen=True)
class TokenScore:
    """A token of the answer as m3_runtime.request.TokenLogprob has it, by its bytes."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]


@dataclasses.dataclass(frozen=True)
class TokenScores:
    """The next tokens of the answer, reasoning and markup included, without the end of the turn; on request only."""

    tokens: tuple[TokenScore, ...]


ChatEvent = ThinkDelta | TextDelta | Call | BadCall | PrefillProgress | Candidate | TokenScores | Finish
