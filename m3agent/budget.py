"""What a run may spend: turns, seconds, tokens."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from m3agent.llm.protocol import Usage


@dataclasses.dataclass(kw_only=True)
class Budget:
    """Limits of one run and what it has spent. Zero means no limit. The clock starts when the budget is built.

    Units: `time_limit_s` in seconds; `max_tokens` counts the tokens that the model wrote.
    """

    max_steps: int = 0
    time_limit_s: float = 0.0
    max_tokens: int = 0
    clock: Callable[[], float] = time.monotonic
    steps: int = dataclasses.field(default=0, init=False)
    usage: Usage = dataclasses.field(default=Usage(), init=False)
    _start: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._start = self.clock()

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self._start

    @property
    def remaining_s(self) -> float | None:
        """Seconds left, never negative; None without a limit."""
        return max(0.0, self.time_limit_s - self.elapsed_s) if self.time_limit_s else None

    def spend(self, usage: Usage) -> None:
        """Count one turn of the model."""
        self.steps += 1
        self.usage = Usage(
            prompt_tokens=self.usage.prompt_tokens + usage.prompt_tokens,
            cached_tokens=self.usage.cached_tokens + usage.cached_tokens,
            completion_tokens=self.usage.completion_tokens + usage.completion_tokens,
        )

    def reached(self) -> str | None:
        """The limit that is used up, as a sentence that says how to raise it, or None."""
        if self.max_steps and self.steps >= self.max_steps:
            return f"the limit of {self.max_steps} steps is reached (--max-steps)"
        if self.time_limit_s and self.elapsed_s >= self.time_limit_s:
            return f"the limit of {self.time_limit_s:g} seconds is reached (--time-limit)"
        if self.max_tokens and self.usage.completion_tokens >= self.max_tokens:
            return f"the limit of {self.max_tokens} written tokens is reached"
        return None
