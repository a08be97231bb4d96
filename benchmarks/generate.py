"""How fast does the engine run nano on two CPU threads, beside transformers' own `generate`?

    python -m benchmarks.generate [--repeats 5] [--threads 2]

Both compute the same checkpoint in float32 (transformers with its fastest attention, sdpa) in one process; the result
is one JSON file under benchmarks/results/. The prompt is that of the recorded repair in tests/transcripts, right before
its edit. Each repeat measures everything once, ours and theirs in turn, and a figure is the median over the repeats, so
that other work on the machine falls on both.

- decode: tokens per second of one greedy answer, without drafts
- candidates: seconds for 16 sampled answers to the prompt. Ours reads the prompt once and forks; theirs is given it 16
  times, as `generate` needs it
- prefill: tokens of the prompt per second
- turns: nano's own greedy answers to all prompts of the recording, with drafts against without
- rewritten file: the file of the recorded edit, written anew with the edit; every token but the recorded one is
  forbidden, since nano writes single lines only
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from benchmarks.heldout import machine
from benchmarks.transformers_model import transformers_model
from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.loading import load_decoder
from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.encoding import PromptEncoder
from m3_runtime.chat.syntax import END_OF_TURN
from m3_runtime.chat.template import ChatTemplate, normalise
from m3_runtime.config import EngineConfig
from m3_runtime.engine import Engine
from m3_runtime.loading import nano_folder
from m3_runtime.request import Matcher, Request, SamplingParams, TokenOutput
from m3agent.events import MessageAdded
from m3agent.fix.prompt import search_tools
from m3agent.llm.wire import message_to_chat
from m3agent.session.store import SessionStore

ROOT = Path(__file__).resolve().parents[1]
ANSWER_TOKENS = 32
CANDIDATES = 16
DRAFT_TOKENS = EngineConfig.draft_tokens
PAGES = 80


class Recorded:
    """A grammar that allows one text only and forces nothing: the model computes every token as if it chose."""

    def __init__(self, token_ids: Sequence[int], position: int = 0):
        self._token_ids, self._position = token_ids, position

    def copy(self) -> Matcher:
        return Recorded(self._token_ids, self._position)

    def fill_mask(self, bits_W: npt.NDArray[np.int32]) -> None:
        token = self._token_ids[self._position]
        bits_W[:] = 0
        bits_W.view(np.uint32)[token // 32] = 1 << token % 32

    def consume(self, token_ids: Sequence[int]) -> None:
        self._position += len(token_ids)

    def forced(self) -> list[int]:
        return []

    def is_complete(self) -> bool:
        return self._position == len(self._token_ids)


class Ours:
    """The engine, made anew for each measurement: nothing is cached from one to the next."""

    def __init__(self, decoder: Decoder, vocab_size: int):
        self._decoder, self._vocab_size = decoder, vocab_size
        self._cache = KVCache.zeros(decoder.config, PAGES)

    def run(self, request: Request, *, forks: int = 0, draft_tokens: int = 0) -> tuple[float, float, list[int]]:
        """Seconds until the first token and from there to the end, and the tokens of the first sequence."""
        config = EngineConfig(
            num_pages=PAGES,
            max_context=2048,
            vocab_size=self._vocab_size,
            draft_tokens=draft_tokens,
            prefix_cache=False,
        )
        engine = Engine(self._decoder, self._cache, config)
        started = time.perf_counter()
        first = engine.add(request)
        tokens: list[int] = []
        while not tokens:
            tokens += _tokens_of(first, engine)
        read = time.perf_counter()
        for seed in range(forks):
            sampling = SamplingParams(temperature=1, seed=seed, max_tokens=request.sampling.max_tokens)
            engine.fork(first, sampling)
        while engine.has_work:
            tokens += _tokens_of(first, engine)
        return read - started, time.perf_counter() - read, tokens


def _tokens_of(request_id: int, engine: Engine) -> list[int]:
    found = [o for o in engine.step() if isinstance(o, TokenOutput) and o.request_id == request_id]
    return [token for output in found for token in output.token_ids]


class Theirs:
    """transformers' model; a prompt is given to it as often as there are answers."""

    def __init__(self, folder: Path, decoder: Decoder):
        self._model = transformers_model(decoder.config, folder)
        self._model.set_attn_implementation("sdpa")

    def run(self, prompt: Sequence[int], num_tokens: int, *, count: int = 1) -> float:
        ids = torch.tensor([list(prompt)] * count)
        started = time.perf_counter()
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=count > 1,
                pad_token_id=0,
            )
        return time.perf_counter() - started


def compare(ours: Ours, theirs: Theirs, prompt: Sequence[int], repeats: int) -> dict[str, Any]:
    """Decode, candidates and prefill of both, and their ratios."""
    greedy = Request(prompt=prompt, sampling=SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS))
    seconds: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        seconds.setdefault(name, []).append(value)

    for repeat in range(-1, repeats):
        if repeat == 0:
            seconds.clear()  # the first round warms both up
        read, written, _ = ours.run(greedy)
        note("our prefill", read)
        note("our decode", written)
        first = theirs.run(prompt, 1)
        note("their prefill", first)
        note("their decode", theirs.run(prompt, ANSWER_TOKENS) - first)
        if repeat >= 0:
            note("our candidates", sum(ours.run(greedy, forks=CANDIDATES - 1)[:2]))
            note("their candidates", theirs.run(prompt, ANSWER_TOKENS, count=CANDIDATES))
    medians = {name: statistics.median(values) for name, values in seconds.items()}

    def row(name: str, amount: int, unit: str) -> dict[str, Any]:
        our_s, their_s = medians[f"our {name}"], medians[f"their {name}"]
        figures = [amount / s if amount else s for s in (our_s, their_s)]
        return {
            "unit": unit,
            "m3": round(figures[0], 2),
            "transformers": round(figures[1], 2),
            "ratio": round(their_s / our_s, 2),
        }

    return {
        "decode": row("decode", ANSWER_TOKENS - 1, "tokens/s"),
        "candidates": row("candidates", 0, "s"),
        "prefill": row("prefill", len(prompt), "tokens/s"),
    }


def compare_drafts(ours: Ours, requests: Sequence[Request], repeats: int) -> dict[str, Any]:
    """Tokens per second of some answers one after another, with drafts and without."""
    seconds: dict[int, list[float]] = {0: [], DRAFT_TOKENS: []}
    answers: dict[int, list[list[int]]] = {}
    for _ in range(repeats):
        for draft_tokens, spent in seconds.items():
            runs = [ours.run(request, draft_tokens=draft_tokens) for request in requests]
            spent.append(sum(written for _, written, _ in runs))
            answers[draft_tokens] = [tokens for _, _, tokens in runs]
    plain_s, drafted_s = (statistics.median(spent) for spent in seconds.values())
    amount = sum(len(tokens) - 1 for tokens in answers[0])
    return {
        "unit": "tokens/s",
        "drafts": round(amount / drafted_s, 2),
        "plain": round(amount / plain_s, 2),
        "ratio": round(plain_s / drafted_s, 2),
        "identical": answers[0] == answers[DRAFT_TOKENS],
    }


def recorded_prompts(encode: Callable[[list[dict[str, Any]]], list[int]]) -> list[list[int]]:
    """The prompt of every answer in the recorded repair."""
    events = SessionStore(ROOT / "tests" / "transcripts").read("fix-inventory").events
    messages = [message_to_chat(event.message, "template") for event in events if isinstance(event, MessageAdded)]
    return [encode(messages[:i]) for i, message in enumerate(messages) if message["role"] == "assistant"]


def rewritten_file(
    encode: Callable[[list[dict[str, Any]]], list[int]], tokenizer: Tokenizer
) -> tuple[list[int], list[int]]:
    """A prompt that shows the file of the recorded edit, and the file with the edit."""
    before = (ROOT / "examples" / "inventory" / "inventory" / "stock.py").read_text()
    after = before.replace("self.level(sku) < item.reorder_level", "self.level(sku) <= item.reorder_level")
    assert after != before
    prompt = encode([{"role": "user", "content": f"Write this file anew, repaired.\n{before}"}])
    return prompt, tokenizer.encode(after, special=False)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    folder = nano_folder()
    decoder, tokenizer = load_decoder(folder), Tokenizer.from_folder(folder)
    encoder, tools = PromptEncoder(ChatTemplate.from_folder(folder), tokenizer), [t.to_openai() for t in search_tools()]

    def encode(messages: list[dict[str, Any]]) -> list[int]:
        return list(encoder.encode(normalise(messages), tools, thinking="disabled"))

    ours = Ours(decoder, len(tokenizer))
    prompts = recorded_prompts(encode)
    end = tokenizer.token_id(END_OF_TURN)
    assert end is not None
    answer = SamplingParams(temperature=0, max_tokens=100, stop_token_ids=(end,))
    turns = [Request(prompt=prompt, sampling=answer) for prompt in prompts]
    prompt, text = rewritten_file(encode, tokenizer)
    whole = SamplingParams(temperature=0, max_tokens=len(text))
    host = machine()
    result = {
        "benchmark": "generate",
        "model": "nano, float32",
        "machine": host,
        "threads": options.threads,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "repeats": options.repeats,
        "prompt_tokens": len(prompts[2]),
        "answer_tokens": ANSWER_TOKENS,
        **compare(ours, Theirs(folder, decoder), prompts[2], options.repeats),
        "turns": compare_drafts(ours, turns, options.repeats),
        "rewritten file": compare_drafts(
            ours, [Request(prompt=prompt, sampling=whole, grammar=Recorded(text))], options.repeats
        ),
    }
    out = Path(__file__).parent / "results" / f"generate-{host['date']}.json"
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
