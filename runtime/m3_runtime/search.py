"""Beam search over one continuation of one prompt: the many answers from which tests choose.

All beams share the prompt's whole pages. Each beam slot owns its last pages, filled once with the prompt's partial
page; from then on two slots differ only behind the prompt, so when a beam splits only those few slots are copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator

import torch

from m3_runtime.config import PAGE_TOKENS, EngineConfig
from m3_runtime.pages import PagePool
from m3_runtime.prefix_cache import PrefixCache
from m3_runtime.request import Hypothesis, Matcher, PrefillProgress, Request
from m3_runtime.runner import Chunk, Runner
from m3_runtime.sampling import mask_logits
from m3_runtime.sequence import take_opening
from m3_runtime.shared_prompt import SharedPrompt, Slots


@dataclasses.dataclass
class _Beam:
    """A live continuation. `computed` of its tokens are in the pages of its slot."""

    token_ids: tuple[int, ...]
    logprob: float
    matcher: Matcher | None
    slot: int = -1
    computed: int = 0


def search(
    runner: Runner,
    pool: PagePool,
    prefix_cache: PrefixCache | None,
    config: EngineConfig,
    request: Request,
    width: int,
    max_tokens: int,
) -> Generator[PrefillProgress, None, list[Hypothesis]]:
    """Up to `width` continuations with the largest log-probability sums, best first.

    A hypothesis ends at a stop token or where its grammar is complete. Tokens that the grammar forces are appended at
    once and cost nothing; the log-probability of every other token is normalised over the tokens that the grammar
    allows at that place. A sum never grows, so a beam worse than `width` finished hypotheses is dropped and the search
    stops when none is left. Beams that reach `max_tokens` come back with finished=False.
    """
    if not 1 <= width <= 1000:
        raise ValueError(f"width is {width}; give a number from 1 to 1000")
    matcher = request.grammar.copy() if request.grammar is not None else None
    forced = take_opening(matcher, max_tokens - 1)
    shared = SharedPrompt(runner, pool, [*request.prompt, *forced], request.visuals)
    try:
        yield from shared.read(prefix_cache, config)
        beams = _Beams(config, request, width, max_tokens - len(forced))
        live = beams.expand([_Beam((), 0.0, matcher)], shared.logits_1V)
        if live:
            with shared.slots(width) as slots:
                live = _place(live, slots, shared, runner)
                while live:
                    logits_RV = _compute(live, slots, len(shared.token_ids), runner, config)
                    live = _place(beams.expand(live, logits_RV), slots, shared, runner)
                    yield PrefillProgress(
                        request_id=0,
                        done_tokens=len(shared.token_ids),
                        total_tokens=len(shared.token_ids),
                        cached_tokens=shared.cached_tokens,
                    )
        found = sorted(beams.finished, key=lambda h: -h.logprob)[:width]
        return [dataclasses.replace(h, token_ids=(*forced, *h.token_ids)) for h in found]
    finally:
        shared.table.free()


class _Beams:
    """Chooses the next beams from logits and collects what is finished."""

    def __init__(self, config: EngineConfig, request: Request, width: int, max_tokens: int):
        self.config, self.width, self.max_tokens = config, width, max_tokens
        self.stops = frozenset(request.sampling.stop_token_ids)
        self.finished: list[Hypothesis] = []

    def expand(self, beams: list[_Beam], logits_RV: torch.Tensor) -> list[_Beam]:
        """The best `width` live children of the beams; children that end here go to `finished`."""
        masked_RV = mask_logits(logits_RV, [b.matcher for b in beams], self.config.vocab_size)
        scores_RV = torch.log_softmax(masked_RV.float(), dim=-1)
        scores_RV = scores_RV + torch.tensor([[b.logprob] for b in beams], device=scores_RV.device)
        # At most `width` of the best can end, so twice the width always leaves enough live ones.
        values, places = torch.topk(scores_RV.flatten(), min(2 * self.width, scores_RV.numel()))
        floor = self._floor()
        live: list[_Beam] = []
        for value, place in zip(values.tolist(), places.tolist(), strict=True):
            if value == float("-inf") or value < floor or len(live) == self.width:
                break
            row, token = divmod(place, scores_RV.shape[1])
            child = self._child(beams[row], token, value)
            if child is not None:
                live.append(child)
        floor = self._floor()
        return [beam for beam in live if beam.logprob >= floor]

    def _child(self, parent: _Beam, token: int, logprob: float) -> _Beam | None:
        new = [token]
        matcher = None
        ended = token in self.stops
        if parent.matcher is not None:
            matcher = parent.matcher.copy()
            matcher.consume(new)
            if not ended and not matcher.is_complete():
                forced = matcher.forced()
                matcher.consume(forced)
                new += forced
            ended = ended or matcher.is_complete() or new[-1] in self.stops
        token_ids = (*parent.token_ids, *new)
        if ended and len(token_ids) <= self.max_tokens:
            self.finished.append(Hypothesis(token_ids=token_ids, logprob=logprob, finished=True))
            return None
        if len(token_ids) >= self.max_tokens:
            cut = token_ids[: self.max_tokens]
            self.finished.append(Hypothesis(token_ids=cut, logprob=logprob, finished=False))
            return None
        return _Beam(token_ids, logprob, matcher, parent.slot, parent.computed)

    def _floor(self) -> float:
        if len(self.finished) < self.width:
            return float("-inf")
        return sorted((h.logprob for h in self.finished), reverse=True)[self.width - 1]


def _place(live: list[_Beam], slots: Slots, shared: SharedPrompt, runner: Runner) -> list[_Beam]:
    """A slot of its own for every beam: the first child keeps its parent's, others copy what lies behind the prompt."""
    kept: set[int] = set()
    homeless: list[_Beam] = []
    for beam in live:
        if beam.slot >= 0 and beam.slot not in kept:
            kept.add(beam.slot)
        else:
            homeless.append(beam)
    free = iter(slot for slot in range(len(slots)) if slot not in kept)
    start = len(shared.token_ids)
    moves: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for beam in homeless:
        source, beam.slot = beam.slot, next(free)
        if source < 0:
            continue
        slots.ensure(beam.slot, start + beam.computed)
        for page in range(start // PAGE_TOKENS, -(-(start + beam.computed) // PAGE_TOKENS)):
            first = max(start - page * PAGE_TOKENS, 0)
            last = min(start + beam.computed - page * PAGE_TOKENS, PAGE_TOKENS)
            moves.setdefault((page, first, last), []).append((slots.pages[source][page], slots.pages[beam.slot][page]))
    for (_, first, last), pairs in moves.items():
        runner.cache.copy_slots([source for source, _ in pairs], [target for _, target in pairs], first, last)
    return live


def _compute(live: list[_Beam], slots: Slots, start: int, runner: Runner, config: EngineConfig) -> torch.Tensor:
    """Logits [B, V] after the last token of each beam; the new tokens of all beams go into the cache."""
    parts = []
    for first in range(0, len(live), config.max_rows):
        group = live[first : first + config.max_rows]
        for beam in group:
            slots.ensure(beam.slot, start + len(beam.token_ids))
        parts.append(
            runner.forward([Chunk(b.token_ids[b.computed :], start + b.computed, slots.pages[b.slot]) for b in group])
        )
        for beam in group:
            beam.computed = len(beam.token_ids)
    return torch.cat(parts)
