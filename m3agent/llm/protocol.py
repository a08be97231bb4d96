"""The seam between the agent and a model: messages and tools in, typed events out.

Three implementations stand behind it: `in_process` (the local engine), `endpoint` (an OpenAI-compatible server) and
`scripted` (a double that plays back given turns). One contract suite runs over all three.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from m3_tools.base import ToolSpec
from m3agent.messages import Message, ToolCall

FinishReason = Literal["stop", "tool_calls", "length"]


class ModelError(Exception):
    """Base of the closed set of errors that a model may raise; the text says what to do."""


class Unavailable(ModelError):
    """The model cannot be reached or loaded now (exit code 75)."""


class ContextFull(ModelError):
    """The prompt does not fit the context window. `prompt_tokens` and `limit_tokens` say by how much."""

    def __init__(self, message: str, *, prompt_tokens: int = 0, limit_tokens: int = 0):
        super().__init__(message)
        self.prompt_tokens, self.limit_tokens = prompt_tokens, limit_tokens


class Refused(ModelError):
    """The server refused the request (bad key, unknown model, unsupported option)."""


class BadReply(ModelError):
    """The reply broke the protocol (a call that does not parse, a stream cut in the middle). Nothing of it was run.

    `by_model` is True where the model itself wrote what does not parse, so that telling it may help.
    """

    def __init__(self, message: str, *, by_model: bool = False):
        super().__init__(message)
        self.by_model = by_model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """Token counts of one turn. `cached_tokens` is the part of the prompt that was not computed again."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThinkDelta:
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextDelta:
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefillProgress:
    """How much of the prompt has been read so far, cached tokens included."""

    done_tokens: int
    total_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolCallReady:
    """A complete, parsed call. Only this event carries a call."""

    call: ToolCall


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidateReady:
    """One of several alternative calls for the same turn, best first. `score` is its log-probability (natural log).

    `proposed` marks the caller's own proposals (`Options.proposed`), which come after the model's, best first as well.
    """

    call: ToolCall
    score: float
    proposed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    reason: FinishReason
    usage: Usage = Usage()


ModelEvent = ThinkDelta | TextDelta | PrefillProgress | ToolCallReady | CandidateReady | Finished


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How to answer one turn.

    `candidates` > 1 asks for that many alternative single calls of this turn, forked on one shared prompt: the stream
    then holds `CandidateReady` events, best first, and no `ToolCallReady`. `tool_choice` names the one tool that must
    be called ("" leaves the choice to the model). `fixed_arguments` limits a parameter of that tool to the given
    values, in every implementation that can bind the output to a grammar; others may ignore it, so the caller checks.
    `proposed` holds arguments of further calls of that tool, to be scored beside the model's own candidates; an
    implementation that cannot score leaves them out.
    """

    max_tokens: int = 8192
    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 40
    seed: int | None = None
    thinking: Literal["enabled", "disabled", "adaptive"] = "adaptive"
    tool_choice: str = ""
    fixed_arguments: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    candidates: int = 1
    proposed: Sequence[Mapping[str, Any]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What the agent must know of a model: the name that every screen shows, its window, and what it can do."""

    name: str
    context_tokens: int
    is_nano: bool = False
    reads_images: bool = False
    note: str = ""
    """Where it computes, in one line, if there was anything to choose."""


class LanguageModel(Protocol):
    """A model that answers one turn at a time."""

    @property
    def info(self) -> ModelInfo: ...

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: Options
    ) -> AsyncIterator[ModelEvent]:
        """Answer the conversation. Closing the iterator cancels the work; the last event is `Finished`.

        Errors: only ModelError and its children.
        """
        ...

    async def aclose(self) -> None:
        """Free what the model holds. Calling it twice is allowed."""
        ...
