"""Captured decode steps give what plain steps give. Here a replay runs the kernels in Triton's interpreter, with the
host's facts as a capture freezes them: the longest context, and no pages.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton", reason="captured steps run kernels")

from m3_kernels.registry import Op
from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.loading import load_decoder
from m3_model.random_checkpoint import tiny_config, write_random_checkpoint
from m3_runtime.config import SCRATCH_PAGES, EngineConfig
from m3_runtime.engine import Engine
from m3_runtime.graphs import DecodeGraphs, Recording
from m3_runtime.request import Request, SamplingParams, TokenOutput
from m3_runtime.runner import Chunk, Runner

PAGES = 16
CONFIG = EngineConfig(num_pages=PAGES, max_context=512, vocab_size=384)
Capture = Callable[[Callable[[], torch.Tensor]], Recording]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("tiny")
    kinds = {"attention_kinds": ("dense", "sparse"), "mlp_kinds": ("dense", "moe")}
    write_random_checkpoint(folder, tiny_config(top_k_blocks=2, **kinds), seed=5, dtype=torch.float32)
    return load_decoder(folder)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Capture:
    from m3_kernels.dense_attention import kernel as dense
    from m3_kernels.msa_decode import kernel as sparse

    # A program that the interpreter runs takes a hundred times as long as on a GPU: fewer of them will do.
    monkeypatch.setattr(sparse, "MIN_GROUPS", 16)
    monkeypatch.setattr(dense, "PROGRAMS", 16)

    def capture(step: Callable[[], torch.Tensor]) -> Recording:
        def replay() -> torch.Tensor:
            with monkeypatch.context() as patch:
                patch.setattr(Op, "__call__", lambda op, *args, **kwargs: op.loaded_kernel(*args, **kwargs))
                return step()

        return replay

    return capture


def tokens(length: int, seed: int = 0) -> list[int]:
    return torch.randint(384, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_steps_of_all_kinds_give_the_same_logits(decoder: Decoder, interpreted: Capture) -> None:
    """One graph after another, and each filled anew: sequences come and go, pages change, a draft is checked."""
    cache = KVCache.zeros(decoder.config, PAGES + SCRATCH_PAGES)
    plain, graphs = Runner(decoder, cache), DecodeGraphs(decoder, cache, CONFIG, interpreted)
    tables = [[7, 2, 9], [4], [11, 3]]
    lengths = [300, 1, 127]  # more blocks than are chosen; the shortest; up to the end of a page
    plain.forward([Chunk(tokens(n, n), 0, pages) for n, pages in zip(lengths, tables, strict=True)])
    first = [Chunk([5 + b], lengths[b], tables[b]) for b in (0, 2, 1)]
    second = [Chunk([9], 128, tables[2]), Chunk([8], 301, tables[0])]  # in other rows than before, the first grown
    draft = [Chunk(tokens(3), 302, tables[0], num_rows=2)]
    border = [Chunk(tokens(3), 125, [4, 0], num_rows=3)]  # what fills it up lies on the next page
    plain.forward([Chunk(tokens(125, 7), 0, [4])])
    for chunks in (first, second, draft, border):
        expected = plain.forward(chunks)
        got = graphs.run(chunks)
        assert got is not None
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert graphs.sizes == ((4, 1), (2, 1), (1, 4))
    used = {0, *(page for table in tables for page in table)}
    others = [page for page in range(PAGES) if page not in used]
    assert not cache.k_LPSGD[:, others].any(), "what fills a step up must stay in scratch"


def test_prompts_and_steps_beyond_the_limits_are_not_captured(decoder: Decoder, interpreted: Capture) -> None:
    cache = KVCache.zeros(decoder.config, PAGES + SCRATCH_PAGES)
    graphs = DecodeGraphs(decoder, cache, CONFIG, interpreted)
    assert graphs.run([Chunk(tokens(9), 0, [1])]) is None
    assert graphs.run([Chunk([1], 512, [1, 2, 3, 4, 5])]) is None
    assert graphs.run([Chunk([1, 2, 3], 508, [1, 2, 3, 4])]) is None
    assert graphs.run([Chunk([1], 3, [1])] * (CONFIG.max_rows + 1)) is None
    assert graphs.run([Chunk([1], 3, [1]), Chunk([1, 2], 3, [2])]) is None


def test_where_capturing_fails_decoding_goes_on_and_it_is_said_once(
    decoder: Decoder, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(step: Callable[[], torch.Tensor]) -> Recording:
        raise RuntimeError("operation not permitted when stream is capturing\nand a long trace")

    def answer(capture: Capture | None) -> list[int]:
        cache = KVCache.zeros(decoder.config, PAGES + SCRATCH_PAGES)
        engine = Engine(decoder, cache, CONFIG)
        engine.runner.graphs = DecodeGraphs(decoder, cache, CONFIG, capture) if capture is not None else None
        request = Request(prompt=tokens(40), sampling=SamplingParams(temperature=0, max_tokens=4))
        outputs = [output for output in engine.stream(request) if isinstance(output, TokenOutput)]
        return [token for output in outputs for token in output.token_ids]

    assert answer(fails) == answer(None)
    assert [record.getMessage() for record in caplog.records] == [
        "m3: decoding goes on without CUDA graphs: operation not permitted when stream is capturing"
    ]


def test_on_a_cpu_nothing_is_captured(decoder: Decoder) -> None:
    cache = KVCache.zeros(decoder.config, PAGES + SCRATCH_PAGES)
    assert DecodeGraphs.open(decoder, cache, CONFIG) is None
