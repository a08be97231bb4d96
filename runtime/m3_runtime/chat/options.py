"""How one turn is to be answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from m3_runtime.chat.template import Thinking
from m3_runtime.request import SamplingParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How to answer one turn. ValueError if a value makes no sense.

    `tool_choice`: "" the model decides, "none" no call, "required" some call, else the name of the tool to call, once.
    `fixed_arguments` limits parameters of the named tool to the given values. `candidates` > 1 asks for that many
    alternative single calls, found by beam search, which neither samples nor uses a seed. `proposed` holds arguments of
    further calls of the named tool, which are scored beside them. The answer's text ends before the first of the `stop`
    texts; reasoning and calls may hold them. `parallel_calls` False allows one call at most.
    `reply_schema` is a JSON schema: the answer's text, if it has any, is JSON that follows it. `top_logprobs` asks for
    the log-probability of every token of the answer, and of that many most likely ones.
    """

    max_tokens: int = 8192
    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 40
    seed: int | None = None
    thinking: Thinking = "adaptive"
    tool_choice: str = ""
    fixed_arguments: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    candidates: int = 1
    proposed: Sequence[Mapping[str, Any]] = ()
    stop: Sequence[str] = ()
    parallel_calls: bool = True
    reply_schema: Mapping[str, Any] | None = None
    top_logprobs: int | None = None

    def __post_init__(self) -> None:
        self.sampling(())
        if self.thinking not in ("enabled", "disabled", "adaptive"):
            raise ValueError(f"thinking is {self.thinking!r}; use enabled, disabled or adaptive")
        if len(self.stop) > 16 or not all(1 <= len(text) <= 256 for text in self.stop):
            raise ValueError("stop takes up to 16 texts of 1 to 256 characters")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= 20:
            raise ValueError(f"top_logprobs is {self.top_logprobs}; give a number from 0 to 20")
        if self.top_logprobs is not None and self.candidates > 1:
            raise ValueError("logprobs does not go together with candidates, which have a score each")
        if not 1 <= self.candidates <= 1000:
            raise ValueError(f"candidates is {self.candidates}; give a number from 1 to 1000")
        if self.fixed_arguments and self.tool_choice in ("", "none", "required"):
            raise ValueError("fixed_arguments needs tool_choice to name the tool")
        if any(not values for values in self.fixed_arguments.values()):
            raise ValueError("fixed_arguments has a parameter without values; give at least one")
        if self.candidates > 1 and self.tool_choice in ("", "none"):
            raise ValueError("candidates needs tool_choice to be required or the name of a tool")
        if self.proposed and (self.candidates == 1 or self.tool_choice in ("", "none", "required")):
            raise ValueError("proposed needs candidates above 1 and tool_choice to name the tool")

    def sampling(self, stop_token_ids: tuple[int, ...]) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            max_tokens=self.max_tokens,
            stop_token_ids=stop_token_ids,
            logprobs=self.top_logprobs,
        )
