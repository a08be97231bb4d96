"""A chat with a local model: messages and tools in, an iterator of typed events out. Closing the iterator cancels."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from m3_model.tokenizer import Tokenizer
from m3_model.vision.resize import ResizeRule
from m3_runtime.chat.encoding import PromptEncoder
from m3_runtime.chat.events import Candidate, ChatEvent, Finish, PrefillProgress, TokenScore, TokenScores, Usage
from m3_runtime.chat.grammar import BadTools, GrammarCompiler, GrammarMatcher, schema_of
from m3_runtime.chat.media import media_in
from m3_runtime.chat.options import ChatOptions
from m3_runtime.chat.parser import Call
from m3_runtime.chat.syntax import END_OF_TURN
from m3_runtime.chat.template import ChatTemplate, normalise
from m3_runtime.chat.transcript import Prompt, Transcripts
from m3_runtime.chat.turn import Answer
from m3_runtime.chat.viewer import Shown, Viewer, place
from m3_runtime.config import DiskConfig, RanksConfig
from m3_runtime.engine import Engine
from m3_runtime.parallel.errors import RankLost
from m3_runtime.planner import SingleDevicePlan
from m3_runtime.request import Output, PromptTooLong, Request, TokenOutput
from m3_runtime.request import PrefillProgress as TokensRead


class Turn:
    """One prepared request and the reading of its answer; ChatEngine.prepare makes it."""

    def __init__(self, prompt: Prompt, request: Request, answer: Answer, transcripts: Transcripts):
        self.prompt, self.request, self._answer, self._transcripts = prompt, request, answer, transcripts
        self._cached_tokens = 0
        self.ended = False
        """Whether Finish has come; a stop text brings it before the engine ends the request."""

    def feed(self, output: Output) -> list[ChatEvent]:
        """The events of one output of the engine; Finish is the last of the last output."""
        if isinstance(output, TokensRead):
            self._cached_tokens = output.cached_tokens
            return [PrefillProgress(done_tokens=output.done_tokens, total_tokens=output.total_tokens)]
        events: list[ChatEvent] = [*self._scores(output), *self._answer.feed(output.token_ids)]
        if output.finish_reason is not None:
            events += self._answer.finish()
        self.ended = output.finish_reason is not None or self._answer.stopped
        if self.ended:
            if not self._answer.stopped:  # else the ids hold more than the answer
                self._transcripts.remember(self.prompt, self._answer.message(), self._answer.token_ids)
            cut = output.finish_reason == "length" and not self._answer.stopped
            events.append(self.finished("length" if cut else "tool_calls" if self._answer.calls else "stop"))
        return events

    def _scores(self, output: TokenOutput) -> list[ChatEvent]:
        spell, ends = self._answer.tokenizer.token_bytes, self.request.sampling.stop_token_ids
        scores = [
            TokenScore(spell(one.token_id), one.logprob, tuple((spell(other), value) for other, value in one.top))
            for one in output.logprobs
            if one.token_id not in ends
        ]
        return [TokenScores(tuple(scores))] if scores else []

    def finished(self, reason: Literal["stop", "tool_calls", "length"]) -> Finish:
        usage = Usage(
            prompt_tokens=len(self.prompt.token_ids),
            cached_tokens=self._cached_tokens,
            completion_tokens=len(self._answer.token_ids),
        )
        return Finish(reason=reason, usage=usage, reused_tokens=self.prompt.reused_tokens, note=self.prompt.note)


class ChatEngine:
    """An engine, its tokenizer and its template; with a viewer it reads images and videos.

    One caller at a time; nothing in here locks.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        name: str,
        is_nano: bool = False,
        viewer: Viewer | None = None,
        plan: SingleDevicePlan | None = None,
        on_close: Callable[[], None] = lambda: None,
    ):
        end = tokenizer.token_id(END_OF_TURN)
        if end is None:
            raise ValueError(f"the tokenizer has no token {END_OF_TURN}; this is not a checkpoint of the M3 family")
        self.engine, self.tokenizer, self.name, self.is_nano = engine, tokenizer, name, is_nano
        self.context_tokens = engine.config.max_context
        self.reads_images = viewer is not None
        self.plan = plan
        self._viewer, self._on_close = viewer, on_close
        self._end = end
        self._encoder = PromptEncoder(template, tokenizer)
        self._transcripts = Transcripts(self._encoder)
        self._grammars: GrammarCompiler | None = None

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        name: str = "",
        dtype: str = "auto",
        device: str = "cpu",
        max_context: int | None = None,
        cache_tokens: int | None = None,
        disk: DiskConfig | None = None,
        image_rule: ResizeRule | None = None,
        cuda_graphs: bool = True,
        experts: str = "auto",
        expert_bits: int = 16,
        ranks: RanksConfig | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> ChatEngine:
        """The model of a checkpoint folder, or of the package for "nano"; see m3_runtime.loading."""
        from m3_runtime.loading import load_chat_engine

        return load_chat_engine(
            folder,
            name=name,
            dtype=dtype,
            device=device,
            max_context=max_context,
            cache_tokens=cache_tokens,
            disk=disk,
            image_rule=image_rule,
            cuda_graphs=cuda_graphs,
            experts=experts,
            expert_bits=expert_bits,
            ranks=ranks,
            progress=progress,
        )

    def close(self) -> None:
        """Save computed prompts that are to be kept, for some seconds at most, and end other processes of the model."""
        try:
            self.engine.close()
        except RankLost:
            pass  # told where it happened; there is nothing left to save
        finally:
            self._on_close()

    def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: ChatOptions | None = None,
    ) -> Generator[ChatEvent]:
        """Answer a conversation; the last event is Finish. ValueError, or PromptTooLong, for what cannot be done."""
        options = options or ChatOptions()
        turn = self.prepare(messages, tools, options)
        if options.candidates > 1:
            yield from self._candidates(turn, messages, tools, options)
            return
        outputs = self.engine.stream(turn.request)
        try:
            for output in outputs:
                yield from turn.feed(output)
                if turn.ended:
                    return
        finally:
            outputs.close()

    def prepare(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: ChatOptions,
        *,
        number: int = 0,
    ) -> Turn:
        """The request of a turn, for a caller that drives the engine itself.

        `number` tells the answers to one prompt apart: the ids of their calls differ.
        """
        for tool in tools:
            if not isinstance(tool.get("function"), Mapping) or not isinstance(tool["function"].get("name"), str):
                raise BadTools("every tool needs the form {type: function, function: {name, parameters}}")
            schema_of(tool)
        known = normalise(messages)
        shown = self._show(known)
        prompt = self._transcripts.prompt(known, tools, options.thinking, shown)
        if len(prompt.token_ids) >= self.context_tokens:
            raise PromptTooLong(len(prompt.token_ids), self.context_tokens)
        request = Request(
            prompt=prompt.token_ids,
            visuals=place(shown, prompt.runs),
            sampling=options.sampling((self._end,)),
            grammar=self._grammar(tools, options),
        )
        return Turn(prompt, request, self._answer(tools, options, prompt, number), self._transcripts)

    def score_calls(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        calls: Sequence[tuple[str, Mapping[str, Any]]],
        options: ChatOptions | None = None,
    ) -> list[float]:
        """Log-probability of answering with each single call, over the whole vocabulary; ends of turn are included.

        ValueError if the mode is enabled: reasoning would have to stand before the call.
        """
        options = options or ChatOptions(thinking="disabled")
        turn = self.prepare(messages, tools, options)
        known = normalise(messages)
        before = self._encoder.render(known, tools, thinking=options.thinking)
        continuations = []
        for name, arguments in calls:
            call = {"function": {"name": name, "arguments": dict(arguments)}}
            answer = normalise([{"role": "assistant", "content": "", "tool_calls": [call]}])[0]
            after = self._encoder.render(
                [*known, answer], tools, thinking=options.thinking, add_generation_prompt=False
            )
            if not after.startswith(before):
                raise ValueError("calls can be scored with thinking disabled or adaptive, not enabled")
            rest = after[len(before) : after.rindex(END_OF_TURN) + len(END_OF_TURN)]
            continuations.append(self._encoder.encode_rendered(rest))
        return self.engine.score(turn.prompt.token_ids, continuations, turn.request.visuals)

    def _show(self, messages: Sequence[Mapping[str, Any]]) -> list[Shown]:
        """The images and videos of normalised messages; ValueError where they cannot be read."""
        media = list(media_in(messages))
        if not media:
            return []
        if self._viewer is None:
            raise ValueError(f"{self.name} reads text only; leave images and videos out")
        return [self._viewer.show(one) for one in media]

    def _candidates(
        self,
        turn: Turn,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: ChatOptions,
    ) -> Iterator[ChatEvent]:
        steps = self.engine.iter_search(turn.request, options.candidates)
        cached = 0
        try:
            while True:
                try:
                    progress = next(steps)
                except StopIteration as stop:
                    found = stop.value
                    break
                cached = progress.cached_tokens
                yield PrefillProgress(done_tokens=progress.done_tokens, total_tokens=progress.total_tokens)
        finally:
            steps.close()
        seen: set[str] = set()
        completion_tokens = 0
        for number, hypothesis in enumerate(found):
            completion_tokens += len(hypothesis.token_ids)
            answer = self._answer(tools, options, turn.prompt, number)
            answer.feed(hypothesis.token_ids)
            answer.finish()
            if not hypothesis.finished or len(answer.calls) != 1 or answer.has_bad_call:
                continue
            call = answer.calls[0]
            written = _written(call.name, call.arguments)
            if written in seen:
                continue  # another spelling of the same call, less likely
            seen.add(written)
            self._transcripts.remember(turn.prompt, answer.message(), answer.token_ids)
            yield Candidate(call=call, logprob=hypothesis.logprob)
        num_found = len(seen)
        for candidate in self._proposed(turn, messages, tools, options, seen):
            num_found += 1
            yield candidate
        usage = Usage(
            prompt_tokens=len(turn.prompt.token_ids), cached_tokens=cached, completion_tokens=completion_tokens
        )
        reason: Literal["tool_calls", "length"] = "tool_calls" if num_found else "length"
        yield Finish(reason=reason, usage=usage, reused_tokens=turn.prompt.reused_tokens, note=turn.prompt.note)

    def _proposed(
        self,
        turn: Turn,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: ChatOptions,
        seen: set[str],
    ) -> Iterator[Candidate]:
        """The caller's own proposals that the search did not find, best first."""
        calls = {_written(options.tool_choice, arguments): arguments for arguments in options.proposed}
        fresh = [arguments for written, arguments in calls.items() if written not in seen]
        if not fresh:
            return
        scores = self.score_calls(messages, tools, [(options.tool_choice, arguments) for arguments in fresh], options)
        order = sorted(range(len(fresh)), key=lambda i: -scores[i])
        for number, i in enumerate(order):
            call = Call(id=f"call_{turn.prompt.key[:12]}_{number}", name=options.tool_choice, arguments=fresh[i])
            yield Candidate(call=call, logprob=scores[i], proposed=True)

    def _answer(self, tools: Sequence[Mapping[str, Any]], options: ChatOptions, prompt: Prompt, number: int) -> Answer:
        schemas = {tool["function"]["name"]: schema_of(tool) for tool in tools}
        return Answer(
            self.tokenizer, schemas, thinking=options.thinking, key=prompt.key, number=number, stop=options.stop
        )

    def _grammar(self, tools: Sequence[Mapping[str, Any]], options: ChatOptions) -> GrammarMatcher | None:
        if not tools and options.tool_choice in ("", "none") and options.reply_schema is None:
            return None
        if self._grammars is None:
            self._grammars = GrammarCompiler(self.tokenizer, self.engine.config.vocab_size, self._end)
        return self._grammars.compile(
            () if options.tool_choice == "none" else tools,
            thinking=options.thinking,
            tool_choice="" if options.tool_choice == "none" else options.tool_choice,
            fixed_arguments=options.fixed_arguments,
            single=options.candidates > 1
            or not options.parallel_calls
            or options.tool_choice not in ("", "none", "required"),
            # Beams are to differ in their calls; reasoning of their own would fill them instead.
            may_think=options.candidates == 1,
            reply_schema=options.reply_schema,
        )


def _written(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as text, the same for the same call."""
    return json.dumps([name, dict(arguments)], sort_keys=True)
