"""Cases of every operation. A new operation, or a new kernel of an old one, is tested by adding to `CASES`.

Each case is a function of a generator that returns fresh random arguments, CPU tensors in float32. Pages lie in random
order, table entries and slots that belong to nobody hold large numbers, and page 0 is somebody's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from m3_kernels.batch import AttentionBatch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Case = Callable[[torch.Generator], Arguments]

S, D = 16, 32
TOP_K = 3


def paged(
    g: torch.Generator, counts: Sequence[int], lengths: Sequence[int], *, shared: int = 0, page_size: int = S
) -> tuple[AttentionBatch, int]:
    """A batch over pages in random order, the first `shared` common to all; returns it and the number of pages."""
    needed = [-(-length // page_size) for length in lengths]
    total = shared + sum(needed) + 3
    order = torch.randperm(total, generator=g).tolist()
    common, free = order[:shared], order[shared:]
    pages = []
    for count in needed:
        own = [free.pop() for _ in range(max(0, count - shared))]
        pages.append(common[:count] + own)
    return AttentionBatch.build(counts, lengths, pages, page_size=page_size), total


def cache(g: torch.Generator, batch: AttentionBatch, total: int, *inner: int) -> Tensor:
    """Random entries in the slots of the batch's sequences, huge ones in all others."""
    out = torch.full((total, batch.page_size, *inner), 1e4)
    for table, length in zip(batch.pages, batch.lengths, strict=True):
        for i, page in enumerate(table):
            filled = min(batch.page_size, length - i * batch.page_size)
            out[page, :filled] = torch.randn(filled, *inner, generator=g)
    return out


def random_blocks(g: torch.Generator, batch: AttentionBatch, G: int, K: int = TOP_K) -> Tensor:
    """Unordered block lists, left-packed, with each row's own block among them."""
    rows = []
    for position in batch.positions_T.tolist():
        own = position // batch.page_size
        for _ in range(G):
            others = torch.randperm(own, generator=g).tolist()[: K - 1] if own else []
            chosen = [own, *others]
            chosen = [chosen[i] for i in torch.randperm(len(chosen), generator=g)]
            rows.append(chosen + [-1] * (K - len(chosen)))
    return torch.tensor(rows, dtype=torch.int32).view(-1, G, K)


BATCHES: dict[str, tuple[list[int], list[int], int]] = {
    # new tokens, lengths, pages in common
    "one token": ([1], [1], 0),
    "one token on many": ([1], [100], 0),
    "a prompt": ([50], [50], 0),
    "the rest of a prompt": ([33], [100], 0),
    "around a page": ([15, 16, 17, 1, 1, 1], [15, 16, 17, 15, 16, 17], 0),
    "forks": ([1] * 7, [70, 65, 81, 70, 97, 64, 66], 4),
    "forks that verify": ([3, 1, 16, 2], [70, 65, 96, 81], 3),
    "one is the other's beginning": ([1, 1, 1], [64, 80, 96], 6),
    "a mixture": ([1, 40, 5, 17, 1], [50, 40, 90, 60, 120], 1),
    "one long": ([1], [700], 0),
}
HEADS = [(1, 1), (4, 2), (6, 2), (8, 1)]


def attention(name: str, heads: tuple[int, int], *, blocks: bool = False) -> Case:
    def make(g: torch.Generator) -> Arguments:
        counts, lengths, shared = BATCHES[name]
        H, G = heads
        batch, total = paged(g, counts, lengths, shared=shared)
        q = torch.randn(sum(counts), H, D, generator=g)
        k, v = cache(g, batch, total, G, D), cache(g, batch, total, G, D)
        chosen = (random_blocks(g, batch, G),) if blocks else ()
        return (q, k, v, *chosen, batch), {"scale": D**-0.5}

    return make


def decode_case(name: str, heads: tuple[int, int], **forced: int) -> Case:
    """Nobody brings more than a few tokens; with few distinct values in the index branch ties are the rule."""

    def make(g: torch.Generator) -> Arguments:
        counts, lengths, shared = BATCHES[name]
        counts = [min(count, 16) for count in counts]
        H, G = heads
        batch, total = paged(g, counts, lengths, shared=shared)
        q = torch.randn(sum(counts), H, D, generator=g)
        index_q = torch.randint(-1, 2, (sum(counts), G, D), generator=g).float()
        index_k = cache(g, batch, total, D).round().clamp(max=2)
        k, v = cache(g, batch, total, G, D), cache(g, batch, total, G, D)
        return (q, index_q, index_k, k, v, batch), {"scale": D**-0.5, "top_k": TOP_K, **forced}

    return make


def index_case(name: str, heads: int) -> Case:
    def make(g: torch.Generator) -> Arguments:
        counts, lengths, shared = BATCHES[name]
        batch, total = paged(g, counts, lengths, shared=shared)
        return (torch.randn(sum(counts), heads, D, generator=g), cache(g, batch, total, D), batch), {}

    return make


def topk_case(rows: int, blocks: int, top_k: int, init: int, local: int) -> Case:
    def make(g: torch.Generator) -> Arguments:
        positions = torch.randint(0, blocks * S, (rows,), generator=g)
        # Few distinct values, so that ties are the rule.
        scores = torch.randint(-3, 4, (rows, 2, blocks), generator=g).float()
        scores.masked_fill_(torch.arange(blocks) > positions[:, None, None] // S, float("-inf"))
        return (scores, positions), {"top_k": top_k, "block_size": S, "init_blocks": init, "local_blocks": local}

    return make


def insert_case(tokens: int, heads: int, pairs: int, index: int) -> Case:
    """`index` index query heads and their key; 0: a layer without an index branch."""

    def make(g: torch.Generator) -> Arguments:
        G = 2
        rows = heads + G + (index + 1 if index else 0)
        angles = torch.randn(tokens, pairs, generator=g)
        pages = [torch.full((5, S, G, D), float("nan")) for _ in range(2)]
        return (
            torch.randn(tokens, (rows + G) * D, generator=g) * 3,
            (torch.randn(rows, D, generator=g),),
            angles.cos(),
            angles.sin(),
            torch.randperm(5 * S, generator=g)[:tokens],
            *pages,
            torch.full((5, S, D), float("nan")) if index else None,
        ), {"num_heads": heads, "eps": 1e-6}

    return make


def moe_case(tokens: int, experts: int, top_k: int, form: str = "") -> Case:
    """Forms of weights, or with "a third elsewhere" experts that are not here."""

    def make(g: torch.Generator) -> Arguments:
        ids = torch.stack([torch.randperm(experts, generator=g)[:top_k] for _ in range(tokens)]) if tokens else None
        if form == "a third elsewhere" and ids is not None:
            ids = torch.where(ids % 3 == 1, -1, ids)
        stored = form.startswith("MX")
        C, width = (64, 96) if stored else (32, 24)
        w13 = torch.randn(experts, 2 * width, C, generator=g)
        w2 = torch.randn(experts, C, width, generator=g)
        scales = None
        if form == "MXFP8":
            w13, w2 = (w.to(torch.float8_e4m3fn) for w in (w13, w2))
        if form == "MXFP4":
            w13, w2 = (
                torch.randint(0, 256, (*w.shape[:2], w.shape[2] // 2), dtype=torch.uint8, generator=g)
                for w in (w13, w2)
            )
        if stored:
            sizes = (experts, 2 * width, C // 32), (experts, C, width // 32)
            scales = tuple(torch.randint(120, 129, size, dtype=torch.uint8, generator=g) for size in sizes)
        return (
            torch.randn(tokens, C, generator=g),
            w13,
            w2,
            torch.empty(0, top_k, dtype=torch.int64) if ids is None else ids,
            torch.rand(tokens, top_k, generator=g),
        ), {"alpha": 1.702, "limit": 7.0, "scales": scales}

    return make


def choose_case(tokens: int, experts: int, top_k: int) -> Case:
    def make(g: torch.Generator) -> Arguments:
        logits, bias = torch.randn(tokens, experts, generator=g) * 3, torch.randn(experts, generator=g)
        return (logits, bias), {"top_k": top_k, "scaling": 2.5}

    return make


def swiglu_case(tokens: int, width: int) -> Case:
    def make(g: torch.Generator) -> Arguments:
        return (torch.randn(tokens, 2 * width, generator=g) * 6,), {"alpha": 1.702, "limit": 7.0}

    return make


def mxfp8_linear_case(tokens: int, outputs: int) -> Case:
    def make(g: torch.Generator) -> Arguments:
        weight = torch.randn(outputs, 96, generator=g).to(torch.float8_e4m3fn)
        scale = torch.randint(120, 129, (outputs, 3), dtype=torch.uint8, generator=g)
        return (torch.randn(tokens, 96, generator=g), weight, scale), {}

    return make


def rms_norm_case(tokens: int, residual: bool) -> Case:
    def make(g: torch.Generator) -> Arguments:
        x = torch.randn(tokens, 48, generator=g)
        return (x, torch.randn(tokens, 48, generator=g) if residual else None, torch.randn(48, generator=g)), {
            "eps": 1e-6
        }

    return make


CASES: dict[str, dict[str, Case]] = {
    "choose_experts": {
        f"{n} tokens, {k} of {e}": choose_case(n, e, k)
        for n in (0, 1, 9)
        for e, k in [(1, 1), (4, 2), (37, 5), (128, 4)]
    },
    "swiglu": {f"{n} tokens, {w} wide": swiglu_case(n, w) for n in (0, 1, 5) for w in (1, 48, 1500)},
    "dense_attention": {f"{n}, heads {h}": attention(n, h) for n in BATCHES for h in HEADS},
    "sparse_prefill": {f"{n}, heads {h}": attention(n, h, blocks=True) for n in BATCHES for h in HEADS},
    "msa_decode": {f"{n}, heads {h}": decode_case(n, h) for n in BATCHES for h in ((6, 2), (8, 1))}
    | {"one initial, two local blocks": decode_case("a mixture", (4, 2), init_blocks=1, local_blocks=2)},
    "index_scores": {f"{n}, heads {h}": index_case(n, h) for n in BATCHES for h in (1, 2, 4)},
    "block_topk": {
        f"{rows} rows, {blocks} blocks, {init} initial, {local} local": topk_case(rows, blocks, k, init, local)
        for rows, blocks, k, init, local in [(1, 1, 4, 0, 1), (40, 3, 4, 0, 1), (40, 30, 4, 0, 1), (40, 30, 4, 1, 2)]
    },
    "moe_experts": {
        f"{n} tokens, {k} of {e}{form and f', {form}'}": moe_case(n, e, k, form)
        for n in (0, 1, 2, 50)
        for e, k, form in [
            (1, 1, ""),
            (4, 2, ""),
            (32, 4, ""),
            (8, 4, "a third elsewhere"),
            (4, 2, "MXFP8"),
            (4, 2, "MXFP4"),
        ]
    },
    "mxfp8_linear": {f"{n} tokens, {x} outputs": mxfp8_linear_case(n, x) for n in (0, 1, 17, 65) for x in (16, 72)},
    "norm_rope_insert": {
        f"{n} tokens, {h} heads, {p} pairs, {i} index heads": insert_case(n, h, p, i)
        for n, h, p in [(1, 4, 8), (33, 4, 16), (80, 14, 8)]
        for i in (0, 1, 2)
    },
    "rms_norm": {f"{n} tokens, residual {r}": rms_norm_case(n, r) for n in (1, 17) for r in (True, False)},
}


@pytest.fixture(scope="session")
def cases() -> dict[str, dict[str, Case]]:
    return CASES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an argument `<operation>_case` runs for every case of that operation."""
    for name, named in CASES.items():
        if f"{name}_case" in metafunc.fixturenames:
            metafunc.parametrize(f"{name}_case", named.values(), ids=named.keys())


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
