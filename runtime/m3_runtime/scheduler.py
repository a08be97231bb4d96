"""Which pending tokens the next step computes."""

from __future__ import annotations

import dataclasses

from m3_runtime.config import PAGE_TOKENS, EngineConfig
from m3_runtime.pages import OutOfPages, PagePool
from m3_runtime.prefix_cache import PrefixCache
from m3_runtime.request import PromptTooLong
from m3_runtime.sequence import Sequence


@dataclasses.dataclass(frozen=True)
class Planned:
    """What a step computes of one sequence: its next `count` pending tokens, and then a draft of what may follow."""

    sequence: Sequence
    count: int
    draft: list[int] = dataclasses.field(default_factory=list)


class Scheduler:
    """Running sequences first, in order of arrival, one step's budget of new tokens shared by all.

    Sequences that decode come before those that read their prompt, so that a long prompt never stalls an answer; what
    is left of the budget goes to prompts. When pages run out, the youngest sequence gives its pages back and starts
    again later; its whole pages usually wait in the prefix cache. A sequence that decodes alone gets a draft: beside
    others its rows would cost what it saves.
    """

    def __init__(self, config: EngineConfig, pool: PagePool, prefix_cache: PrefixCache | None):
        self.config, self.pool, self.prefix_cache = config, pool, prefix_cache
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def plan(self) -> list[Planned]:
        """The sequences of the next step; pages are reserved."""
        self._admit()
        planned: list[Planned] = []
        budget = self.config.prefill_chunk
        for sequence in sorted(self.running, key=lambda s: s.num_pending > 1):
            if budget == 0 or len(planned) == self.config.max_rows or sequence not in self.running:
                continue
            count = min(sequence.num_pending, budget)
            if self._reserve(sequence, count, planned):
                planned.append(Planned(sequence, count))
                budget -= count
        if len(planned) == len(self.running) == 1:
            return [self._with_draft(planned[0])]
        return planned

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out and give its pages back; computed whole pages stay in the prefix cache."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._give_back(sequence)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.config.max_rows:
            sequence = self.waiting[0]
            if self.prefix_cache is not None and not sequence.table.pages:
                # One token at least must be computed: its logits are wanted.
                sequence.table.adopt(self.prefix_cache.acquire(sequence.keys(len(sequence.token_ids) - 1)))
            if sequence.cached_tokens is None:
                sequence.cached_tokens = min(sequence.table.num_tokens, sequence.num_prompt_tokens)
            self.running.append(self.waiting.pop(0))

    def _with_draft(self, alone: Planned) -> Planned:
        sequence = alone.sequence
        if sequence.in_prompt or alone.count < sequence.num_pending:
            return alone
        # Within the pages that it has: a guess is no reason to take a page from the prefix cache.
        room = len(sequence.table.pages) * PAGE_TOKENS - len(sequence.token_ids)
        return Planned(sequence, alone.count, sequence.draft(min(room, self.config.draft_tokens)))

    def _reserve(self, sequence: Sequence, count: int, planned: list[Planned]) -> bool:
        while True:
            try:
                sequence.table.reserve(count)
                return True
            except OutOfPages:
                busy = [p.sequence for p in planned]
                victims = [s for s in self.running if s is not sequence and s not in busy]
                if victims:
                    victim = victims[-1]
                elif planned:
                    return False  # the others of this step finish or grow; this one waits
                else:
                    raise PromptTooLong(len(sequence.token_ids), self.pool.num_pages * PAGE_TOKENS) from None
                self.running.remove(victim)
                self._give_back(victim)
                self.waiting.insert(0, victim)

    def _give_back(self, sequence: Sequence) -> None:
        if self.prefix_cache is not None:
            self.prefix_cache.insert(sequence.keys(sequence.table.num_tokens), sequence.table.pages)
        sequence.table.free()
