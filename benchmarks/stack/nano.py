"""nano on the GPU: the same greedy tokens as on the CPU, and its speed beside transformers' own `generate`."""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.stack.serving import synchronize
from m3_model import attention, names
from m3_model.cache import KVCache
from m3_model.loading import load_decoder
from m3_model.tokenizer import Tokenizer
from m3_runtime.config import SCRATCH_PAGES, EngineConfig
from m3_runtime.engine import Engine
from m3_runtime.request import Request, SamplingParams, TokenOutput

FOLDER = Path(names.__file__).parent / "nano"
PAGES = 32
PROMPT_TOKENS = 400


def nano_rows(num_tokens: int, repeats: int) -> Iterator[dict[str, Any]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prompt = Tokenizer.from_folder(FOLDER).encode(inspect.getsource(attention), special=False)[:PROMPT_TOKENS]
    ours = {place: _Ours(place) for place in dict.fromkeys(("cpu", device))}
    expected = ours["cpu"].run(prompt, num_tokens)[1]
    tokens = {
        f"graphs {'on' if graphs else 'off'}": ours[device].run(prompt, num_tokens, graphs=graphs)[1]
        for graphs in (True, False)
    }
    yield {
        "what": "nano, greedy tokens",
        "device": device,
        "tokens": num_tokens,
        **{f"{name}, same as on the CPU": found == expected for name, found in tokens.items()},
    }
    speeds = {
        name: statistics.median(ours[device].run(prompt, num_tokens, **how)[0] for _ in range(repeats))
        for name, how in {
            "graphs": {},
            "no graphs": {"graphs": False},
            "graphs and drafts": {"drafts": EngineConfig.draft_tokens},
        }.items()
    }
    row = {"what": "nano decodes", "device": device, **{f"{k}, tokens/s": round(v, 1) for k, v in speeds.items()}}
    yield row
    theirs_per_s, found = _theirs(prompt, num_tokens, repeats, device)
    yield row | {
        "what": "nano beside transformers",
        "transformers, tokens/s": round(theirs_per_s, 1),
        "ratio": round(speeds["graphs"] / theirs_per_s, 2),
        "same tokens": found == expected,
    }


class _Ours:
    def __init__(self, device: str):
        self._device = device
        self._decoder = load_decoder(FOLDER, device=device)
        self._cache = KVCache.zeros(self._decoder.config, PAGES + SCRATCH_PAGES, device=device)
        self._engines: dict[tuple[bool, int], Engine] = {}

    def run(
        self, prompt: list[int], num_tokens: int, *, graphs: bool = True, drafts: int = 0
    ) -> tuple[float, list[int]]:
        """Tokens per second behind the first one, and the tokens. Graphs that were captured are kept."""
        config = EngineConfig(
            num_pages=PAGES,
            max_context=2048,
            vocab_size=self._decoder.config.vocab_size,
            prefix_cache=False,
            draft_tokens=drafts,
            cuda_graphs=graphs,
        )
        if (graphs, drafts) not in self._engines:
            self._engines[graphs, drafts] = Engine(self._decoder, self._cache, config)
            self.run(prompt, num_tokens, graphs=graphs, drafts=drafts)
        request = Request(prompt=prompt, sampling=SamplingParams(temperature=0, max_tokens=num_tokens))
        begin_s, first, found = 0.0, 0, list[int]()
        for output in self._engines[graphs, drafts].stream(request):
            if isinstance(output, TokenOutput):
                found += output.token_ids
                if not begin_s:
                    begin_s, first = time.perf_counter(), len(found)
        return (len(found) - first) / (time.perf_counter() - begin_s), found


def _theirs(prompt: list[int], num_tokens: int, repeats: int, device: str) -> tuple[float, list[int]]:
    """The same of transformers, in float32 with its fastest attention."""
    from benchmarks.transformers_model import transformers_model

    model = transformers_model(load_decoder(FOLDER).config, FOLDER).to(device)
    model.set_attn_implementation("sdpa")
    ids = torch.tensor([prompt], device=device)

    def seconds(count: int) -> tuple[float, list[int]]:
        synchronize()
        begin = time.perf_counter()
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )
        synchronize()
        return time.perf_counter() - begin, found[0, len(prompt) :].tolist()

    seconds(2)
    first = statistics.median(seconds(1)[0] for _ in range(repeats))
    runs = [seconds(num_tokens) for _ in range(repeats)]
    rest = statistics.median(s for s, _ in runs) - first
    return (num_tokens - 1) / max(rest, 1e-9), runs[0][1]
