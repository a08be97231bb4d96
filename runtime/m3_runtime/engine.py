"""The engine: requests in, tokens out, one forward pass a step. No threads; the caller's loop drives it."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Generator, Iterator
from collections.abc import Sequence as Tokens

import torch

from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_runtime.config import PAGE_TOKENS, EngineConfig, pages_for
from m3_runtime.disk_cache import DiskCache
from m3_runtime.graphs import DecodeGraphs
from m3_runtime.pages import PagePool, PageTable
from m3_runtime.prefix_cache import PrefixCache
from m3_runtime.request import (
    Hypothesis,
    Output,
    PrefillProgress,
    PromptTooLong,
    Request,
    SamplingParams,
    TokenLogprob,
    TokenOutput,
)
from m3_runtime.runner import Chunk, Runner
from m3_runtime.sampling import logprob_of, mask_logits, sample
from m3_runtime.scheduler import Planned, Scheduler
from m3_runtime.score import score
from m3_runtime.search import search
from m3_runtime.sequence import Sequence, take_opening
from m3_runtime.visuals import Visual

_SAVE_AT_END_S = 5.0
"""How long the end of a process may take for pages that are not saved yet; the next run saves more of them."""


class Engine:
    """Runs any number of sequences on one decoder and one cache.

    With one sequence at a time, the same request and seed give the same tokens. With a disk cache, prefixes are kept
    beyond this process. `runner` takes the steps instead of a plain one, for instance on several ranks.
    Raises ValueError if the cache is smaller than one full context.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        config: EngineConfig,
        disk: DiskCache | None = None,
        runner: Runner | None = None,
    ):
        if pages_for(config.max_context) > config.num_pages or config.num_pages > cache.num_pages:
            raise ValueError(
                f"a context of {config.max_context} tokens needs {pages_for(config.max_context)} pages; the engine has "
                f"{config.num_pages} and the cache {cache.num_pages}: give more pages or a smaller context"
            )
        self.config = config
        self.pool = PagePool(cache, config.num_pages)
        self.prefix_cache = PrefixCache(self.pool, disk) if config.prefix_cache else None
        if runner is None:
            runner = Runner(decoder, cache, config.encoding_bytes, DecodeGraphs.open(decoder, cache, config))
        self.runner = runner
        self._scheduler = Scheduler(config, self.pool, self.prefix_cache)
        self._sequences: dict[int, Sequence] = {}
        self._mailboxes: dict[int, deque[Output]] = {}
        self._ids = itertools.count(1)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, request: Request) -> int:
        """Queue a request and return its id. Raises PromptTooLong, or ValueError for an empty prompt or unknown ids."""
        self._check(request)
        sequence = Sequence(next(self._ids), request, PageTable(self.pool))
        # What the grammar forces right away is read together with the prompt, but it is part of the answer.
        room = min(request.sampling.max_tokens, self.config.max_context - len(request.prompt))
        forced = take_opening(sequence.matcher, room - 1)
        sequence.token_ids += forced
        sequence.unreported = tuple(forced)
        self._sequences[sequence.id] = sequence
        self._scheduler.waiting.append(sequence)
        return sequence.id

    def cancel(self, request_id: int) -> None:
        """Stop a request and free its pages; unknown and finished ids are ignored."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._scheduler.remove(sequence)

    def fork(self, request_id: int, sampling: SamplingParams) -> int:
        """A second continuation of a live request from its present state, in the same pages. Returns the new id."""
        child = self._sequences[request_id].fork(next(self._ids), sampling)
        self._sequences[child.id] = child
        self._scheduler.running.append(child)
        return child.id

    def step(self) -> list[Output]:
        """One forward pass. Returns progress of prompts and new tokens, except those that `stream` collects."""
        if self.prefix_cache is not None:
            self.prefix_cache.save()  # what an earlier step asked for: the first token does not wait for it
        planned = self._scheduler.plan()
        if not planned:
            return []
        logits_RV = self.runner.forward([self._chunk(p) for p in planned])
        outputs: list[Output] = []
        for p in planned:
            outputs += self._take(p, logits_RV[: 1 + len(p.draft)])
            logits_RV = logits_RV[1 + len(p.draft) :]
        kept: list[Output] = []
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is None:
                kept.append(output)
            else:
                mailbox.append(output)
        return kept

    def stream(self, request: Request) -> Generator[Output]:
        """Run one request to its end, other live requests along with it; closing the iterator cancels it."""
        request_id = self.add(request)
        mailbox: deque[Output] = deque()
        self._mailboxes[request_id] = mailbox
        try:
            while True:
                while mailbox:
                    output = mailbox.popleft()
                    yield output
                    if isinstance(output, TokenOutput) and output.finish_reason is not None:
                        return
                self.step()
        finally:
            del self._mailboxes[request_id]
            self.cancel(request_id)

    def search(self, request: Request, width: int, max_tokens: int | None = None) -> list[Hypothesis]:
        """`width` best continuations within the request's grammar, best first; see m3_runtime.search."""
        steps = self.iter_search(request, width, max_tokens)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                result: list[Hypothesis] = stop.value
                return result

    def iter_search(
        self, request: Request, width: int, max_tokens: int | None = None
    ) -> Generator[PrefillProgress, None, list[Hypothesis]]:
        """The same, a step at a time; yields progress, returns the hypotheses. Closing it frees everything."""
        self._check(request)
        limit = min(max_tokens or request.sampling.max_tokens, self.config.max_context - len(request.prompt))
        return search(self.runner, self.pool, self.prefix_cache, self.config, request, width, limit)

    def score(
        self, prompt: Tokens[int], continuations: Tokens[Tokens[int]], visuals: Tokens[Visual] = ()
    ) -> list[float]:
        """Log-probability of each continuation after the prompt, over the whole vocabulary; see m3_runtime.score."""
        longest = max((len(c) for c in continuations), default=0)
        self._check(Request(prompt=prompt, visuals=visuals))
        if len(prompt) + longest > self.config.max_context:
            raise PromptTooLong(len(prompt) + longest, self.config.max_context)
        return score(self.runner, self.pool, self.prefix_cache, self.config, prompt, continuations, visuals)

    def close(self) -> None:
        """Save what waits to be saved, for some seconds at most. The engine can be used on."""
        if self.prefix_cache is not None and self.prefix_cache.disk is not None:
            self.prefix_cache.save(time.monotonic() + _SAVE_AT_END_S)
            self.prefix_cache.disk.close()

    def _check(self, request: Request) -> None:
        if not request.prompt:
            raise ValueError("the prompt is empty; give at least one token")
        if len(request.prompt) >= self.config.max_context:
            raise PromptTooLong(len(request.prompt), self.config.max_context)
        if not 0 <= min(request.prompt) <= max(request.prompt) < self.config.vocab_size:
            raise ValueError(f"the prompt holds token ids outside 0..{self.config.vocab_size - 1}")
        if request.visuals and self.runner.encodings is None:
            raise ValueError("the prompt holds images or videos, and this model reads text only")
        if any(run.stop > len(request.prompt) for visual in request.visuals for run in visual.runs):
            raise ValueError("the prompt ends before its images and videos do")

    def _chunk(self, planned: Planned) -> Chunk:
        sequence = planned.sequence
        start = sequence.table.num_tokens
        token_ids = sequence.token_ids[start : start + planned.count] + planned.draft
        num_rows = 1 + len(planned.draft)
        return Chunk(token_ids, start, sequence.table.pages, num_rows=num_rows, visuals=sequence.visuals)

    def _take(self, planned: Planned, logits_RV: torch.Tensor) -> Iterator[Output]:
        """What a computed step gives one sequence: progress in its prompt, a token, or with a draft several.

        Every token is chosen as if there were no draft. While it is the drafted one, its keys and values are in the
        cache and its row of logits is there for the next choice; from the first that is not, the draft counts as
        never computed.
        """
        sequence, table = planned.sequence, planned.sequence.table
        was_in_prompt = sequence.in_prompt
        table.num_tokens += planned.count
        if was_in_prompt:
            yield self._progress(sequence)
        num_right = 0
        while not sequence.num_pending:
            masked_1V = mask_logits(logits_RV[num_right, None], [sequence.matcher], self.config.vocab_size)
            token_id, num_top = sample(masked_1V[0], sequence.sampling, sequence.random), sequence.sampling.logprobs
            logits_V = logits_RV[num_right, : self.config.vocab_size]
            scored = logprob_of(logits_V, token_id, num_top) if num_top is not None else None
            yield self._advance(sequence, token_id, scored)
            if sequence.finish_reason is not None:
                return
            for token in planned.draft[num_right:]:
                if not sequence.num_pending or sequence.token_ids[table.num_tokens] != token:
                    break
                table.num_tokens += 1
                num_right += 1
        if planned.draft:
            sequence.lookup.learn(len(planned.draft), num_right)

    def _progress(self, sequence: Sequence) -> PrefillProgress:
        if not sequence.in_prompt and self.prefix_cache is not None:
            whole = sequence.num_prompt_tokens // PAGE_TOKENS
            self.prefix_cache.insert(sequence.keys(whole * PAGE_TOKENS), sequence.table.pages)
        return PrefillProgress(
            request_id=sequence.id,
            done_tokens=min(sequence.table.num_tokens, sequence.num_prompt_tokens),
            total_tokens=sequence.num_prompt_tokens,
            cached_tokens=sequence.cached_tokens or 0,
        )

    def _advance(self, sequence: Sequence, token_id: int, scored: TokenLogprob | None) -> TokenOutput:
        before, new = sequence.unreported, sequence.append(token_id, self.config.max_context)
        sequence.unreported = ()
        logprobs: tuple[TokenLogprob, ...] = ()
        if scored is not None:
            forced = [TokenLogprob(token, 0.0, ((token, 0.0),)[: len(scored.top)]) for token in (*before, *new[1:])]
            logprobs = (*forced[: len(before)], scored, *forced[len(before) :])
        output = TokenOutput(
            request_id=sequence.id,
            token_ids=before + new,
            finish_reason=sequence.finish_reason,
            logprobs=logprobs,
        )
        if output.finish_reason is not None:
            self.cancel(sequence.id)
        return output
