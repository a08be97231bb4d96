"""What a caller asks of the engine, and what it gets back: token ids in, token ids out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from m3_runtime.visuals import Visual

FinishReason = Literal["stop", "length", "cancelled"]


class PromptTooLong(ValueError):
    """The prompt leaves no room for an answer; both sizes are in tokens."""

    def __init__(self, prompt_tokens: int, limit_tokens: int):
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and the window holds {limit_tokens}; "
            "shorten the prompt or start the engine with a larger context"
        )
        self.prompt_tokens, self.limit_tokens = prompt_tokens, limit_tokens


class Matcher(Protocol):
    """The state of one sequence in a grammar; m3_runtime.chat.grammar gives one, other sources may."""

    def copy(self) -> Matcher:
        """An independent copy: what happens to one is not seen by the other."""
        ...

    def fill_mask(self, bits_W: npt.NDArray[np.int32]) -> None:
        """Write one bit per token id (1 = allowed), 32 ids a word, lowest bit first. W covers the vocabulary."""
        ...

    def consume(self, token_ids: Sequence[int]) -> None:
        """Advance; ValueError if the grammar does not allow these tokens."""
        ...

    def forced(self) -> list[int]:
        """The tokens that must come next, not yet consumed; empty where there is a choice."""
        ...

    def is_complete(self) -> bool:
        """Whether nothing more may follow."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave the distribution whole.

    `seed` None takes fresh entropy. A stop token ends the sequence and is part of the output. With `logprobs`, each
    token comes with its log-probability and those of that many most likely ones.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise ValueError(f"temperature is {self.temperature}; give a number from 0 to 100")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; give a number above 0 and up to 1")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; give 0 (off) or more")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; give at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to continue. `grammar` starts at the first generated token; the engine works on a copy of it.

    `visuals` are the images and videos of the prompt, by their places.
    """

    prompt: Sequence[int]
    visuals: Sequence[Visual] = ()
    sampling: SamplingParams = SamplingParams()
    grammar: Matcher | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefillProgress:
    """How much of the prompt is in the cache; `cached_tokens` of it were there before."""

    request_id: int
    done_tokens: int
    total_tokens: int
    cached_tokens: int


@dataclasses.dataclass(frozen=True)
class TokenLogprob:
    """A token with the natural logarithm of its probability, and the most likely tokens in its place, best first.

    Probabilities are the model's own, over the whole vocabulary, before temperature, grammar, top-k and top-p.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenOutput:
    """New tokens of one sequence: the sampled one and those that the grammar forces after it.

    `logprobs`, where they were asked for, has one for each token; a forced one is certain.
    """

    request_id: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


Output = PrefillProgress | TokenOutput


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One continuation found by search. `logprob` is a sum of natural logarithms.

    Tokens forced by the grammar count as certain; the others are normalised over the tokens that the grammar allows.
    `finished` is False if the token limit cut it off.
    """

    token_ids: tuple[int, ...]
    logprob: float
    finished: bool
