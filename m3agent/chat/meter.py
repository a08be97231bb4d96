"""What a chat costs: tokens, cache and speed, from the events of its turns."""

from __future__ import annotations

import time
from collections.abc import Callable

from m3agent.events import AnswerText, Event, ThinkText, TurnEnded, TurnStarted


class Meter:
    """A sink that counts. Counts are zero and rates None until a turn has told them."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._first_word = 0.0
        self.turns = 0
        self.written_tokens = 0
        """Tokens that the model wrote in all turns."""
        self.read_tokens = 0
        """Prompt tokens of all turns that had to be computed."""
        self.cached_tokens = 0
        """Prompt tokens of all turns that came from the cache."""
        self.duration_s = 0.0
        self.context_tokens = 0
        """What the last turn left in the window: its prompt and its reply."""
        self.cached_share: float | None = None
        """Part of the last prompt that was cached, 0 to 1."""
        self.tokens_per_s: float | None = None
        """Speed of the last turn's writing, from its first word on."""

    def __call__(self, event: Event) -> None:
        match event:
            case TurnStarted():
                self._first_word = 0.0
            case ThinkText() | AnswerText() if not self._first_word:
                self._first_word = self._clock()
            case TurnEnded():
                self.turns += 1
                self.duration_s += event.duration_s
                self.written_tokens += event.completion_tokens
                self.cached_tokens += event.cached_tokens
                self.read_tokens += event.prompt_tokens - event.cached_tokens
                self.context_tokens = event.prompt_tokens + event.completion_tokens
                self.cached_share = event.cached_tokens / event.prompt_tokens if event.prompt_tokens else None
                writing_s = self._clock() - self._first_word
                if self._first_word and writing_s > 0.05:
                    self.tokens_per_s = event.completion_tokens / writing_s
