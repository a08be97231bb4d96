"""One request while it runs: its tokens, its pages, its place in the grammar and its random numbers."""

from __future__ import annotations

import copy
import random

from m3_runtime.pages import PageTable
from m3_runtime.request import FinishReason, Matcher, Request, SamplingParams
from m3_runtime.speculation import Lookup
from m3_runtime.visuals import TokenKey, token_keys


def take_opening(matcher: Matcher | None, limit: int) -> list[int]:
    """Consume what the grammar forces at the start, at most `limit` tokens, and return it.

    The last token of an answer is never taken here, even if all of it is forced: it goes the way of a sampled token,
    which is where a sequence ends.
    """
    if matcher is None:
        return []
    forced = matcher.forced()
    probe = matcher.copy()
    probe.consume(forced)
    if probe.is_complete():
        forced = forced[:-1]
    forced = forced[: max(limit, 0)]
    matcher.consume(forced)
    return forced


class Sequence:
    """Tokens of prompt and answer; `table.num_tokens` of them are computed, the rest is pending.

    There is no difference between prefill and decoding here: a step computes pending tokens, and when none is left
    the logits of the last one give the next token. Tokens that a grammar forces simply become pending together.
    """

    def __init__(self, request_id: int, request: Request, table: PageTable):
        self.id = request_id
        self.token_ids: list[int] = list(request.prompt)
        self.num_prompt_tokens = len(request.prompt)
        self.visuals = request.visuals
        self.sampling: SamplingParams = request.sampling
        self.matcher = request.grammar.copy() if request.grammar is not None else None
        self.table = table
        self.cached_tokens: int | None = None
        """Prompt tokens that were in the cache when it first ran; None before that."""
        self.random = random.Random(request.sampling.seed)
        self.finish_reason: FinishReason | None = None
        self.lookup = Lookup()
        self.unreported: tuple[int, ...] = ()
        """Answer tokens that the grammar forced before the first sampled one, reported together with it."""

    def keys(self, num_tokens: int) -> list[TokenKey]:
        """What tells its first tokens apart from those of other sequences."""
        return token_keys(self.token_ids[:num_tokens], self.visuals)

    @property
    def num_pending(self) -> int:
        return len(self.token_ids) - self.table.num_tokens

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def in_prompt(self) -> bool:
        return self.table.num_tokens < self.num_prompt_tokens

    def append(self, token_id: int, max_context: int) -> tuple[int, ...]:
        """Take the sampled token and what the grammar forces after it; sets `finish_reason` when this ends it."""
        new = [token_id]
        if self.matcher is not None:
            self.matcher.consume(new)
            if token_id not in self.sampling.stop_token_ids and not self.matcher.is_complete():
                forced = self.matcher.forced()
                self.matcher.consume(forced)
                new += forced
        room = min(self.sampling.max_tokens - self.num_generated, max_context - len(self.token_ids))
        accepted = []
        for token in new[:room]:
            accepted.append(token)
            if token in self.sampling.stop_token_ids:
                self.finish_reason = "stop"
                break
        self.token_ids += accepted
        if self.finish_reason is None and len(accepted) == len(new) and self.matcher and self.matcher.is_complete():
            self.finish_reason = "stop"
        if self.finish_reason is None and len(accepted) >= room:
            self.finish_reason = "length"
        return tuple(accepted)

    def draft(self, limit: int) -> list[int]:
        """At most `limit` tokens that may come after all of its tokens; never more than it may still write."""
        return self.lookup.draft(self.token_ids, min(limit, self.sampling.max_tokens - self.num_generated - 1))

    def fork(self, request_id: int, sampling: SamplingParams) -> Sequence:
        """A copy in the same pages that goes its own way from here; it draws from its own seed."""
        child = copy.copy(self)
        child.id = request_id
        child.token_ids = list(self.token_ids)
        child.matcher = self.matcher.copy() if self.matcher is not None else None
        child.table = self.table.fork()
        child.sampling = sampling
        child.random = random.Random(sampling.seed)
        child.lookup = Lookup()
        return child
