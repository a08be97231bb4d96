"""Which pending tokens the next step computes."""

from __future__ import annotations

from m3_runtime.config import EngineConfig
from m3_runtime.pages import OutOfPages, PagePool
from m3_runtime.prefix_cache import PrefixCache
from m3_runtime.request import PromptTooLong
from m3_runtime.sequence import Sequence


class Scheduler:
    """Running sequences first, in order of arrival, one step's budget of new tokens shared by all.

    Sequences that decode come before those that read their prompt, so that a long prompt never stalls an answer; what
    is left of the budget goes to prompts. When pages run out, the youngest sequence gives its pages back and starts
    again later; its whole pages usually wait in the prefix cache.
    """

    def __init__(self, config: EngineConfig, pool: PagePool, prefix_cache: PrefixCache | None):
        self.config, self.pool, self.prefix_cache = config, pool, prefix_cache
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def plan(self) -> list[tuple[Sequence, int]]:
        """Sequences of the next step and how many of their pending tokens it computes; pages are reserved."""
        self._admit()
        planned: list[tuple[Sequence, int]] = []
        budget = self.config.prefill_chunk
        for sequence in sorted(self.running, key=lambda s: s.num_pending > 1):
            if budget == 0 or len(planned) == self.config.max_rows or sequence not in self.running:
                continue
            count = min(sequence.num_pending, budget)
            if self._reserve(sequence, count, planned):
                planned.append((sequence, count))
                budget -= count
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

    def _reserve(self, sequence: Sequence, count: int, planned: list[tuple[Sequence, int]]) -> bool:
        while True:
            try:
                sequence.table.reserve(count)
                return True
            except OutOfPages:
                busy = [s for s, _ in planned]
                victims = [s for s in self.running if s is not sequence and s not in busy]
                if victims:
                    victim = victims[-1]
                elif planned:
                    return False  # the others of this step finish or grow; this one waits
                else:
                    raise PromptTooLong(len(sequence.token_ids), self.pool.num_pages * 128) from None
                self.running.remove(victim)
                self._give_back(victim)
                self.waiting.insert(0, victim)

    def _give_back(self, sequence: Sequence) -> None:
        if self.prefix_cache is not None:
            self.prefix_cache.insert(sequence.keys(sequence.table.num_tokens), sequence.table.pages)
        sequence.table.free()
