"""Every kernel agrees with its reference: under Triton's interpreter here, on a GPU where there is one.

Memory that a kernel allocates starts poisoned, so a result that was not written cannot pass.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from m3_kernels.batch import AttentionBatch
from m3_kernels.moe_experts.reference import unpacked_e2m1
from m3_kernels.registry import operations

pytest.importorskip("triton", reason="kernels need Triton")

from m3_kernels.softmax import bounded

Case = Callable[[torch.Generator], Any]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = [name for name in sorted(operations()) if importlib.util.find_spec(f"m3_kernels.{name}.kernel")]
HALF = {"dense_attention", "sparse_prefill", "msa_decode", "index_scores", "norm_rope_insert", "swiglu"}
"""Operations that are also tested with fp16 tensors."""


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """torch.empty gives NaN and the largest integers."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(autouse=True)
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the interpreter, which runs programs one after the other, there are eight and not 64."""
    if DEVICE == "cpu":
        from m3_kernels.dense_attention import kernel as dense
        from m3_kernels.msa_decode import kernel as decode

        monkeypatch.setattr(dense, "MAX_PARTS", 8)
        monkeypatch.setattr(decode, "MIN_GROUPS", 8)


def kernel_of(name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(f"m3_kernels.{name}.kernel"), name)  # type: ignore[no-any-return]


def moved(value: Any, dtype: torch.dtype) -> Any:
    """On the device of the kernels; floating tensors in `dtype`."""
    if isinstance(value, AttentionBatch):
        return AttentionBatch.build(
            value.query_counts, value.lengths, value.pages, page_size=value.page_size, device=DEVICE
        )
    if isinstance(value, tuple):
        return tuple(moved(item, dtype) for item in value)
    if isinstance(value, torch.Tensor):
        kept = not value.is_floating_point() or value.dtype == torch.float8_e4m3fn
        return value.to(DEVICE, value.dtype if kept else dtype)
    return value


def comparable(name: str, result: Any) -> list[torch.Tensor]:
    """Results as a list; block lists as sets."""
    found = list(result) if isinstance(result, tuple) else [result]
    return [r.sort(-1).values for r in found] if name == "block_topk" else [r.float() for r in found if r is not None]


def run_case(name: str, case: Case, dtype: torch.dtype) -> None:
    args, kwargs = case(torch.Generator().manual_seed(11))
    kwargs = {key: moved(value, dtype) for key, value in kwargs.items()}
    args = tuple(moved(a, dtype if name != "block_topk" else torch.float32) for a in args)
    copies = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
    expected = operations()[name].reference(*copies, **kwargs)
    got = kernel_of(name)(*args, **kwargs)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    for left, right in zip(comparable(name, got), comparable(name, expected), strict=True):
        torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)
    for left, right in zip(args, copies, strict=True):  # what it writes into its arguments
        if isinstance(left, torch.Tensor) and left.dtype != torch.float8_e4m3fn:
            torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_equals_its_reference(name: str, cases: dict[str, dict[str, Case]]) -> None:
    for case in cases[name].values():
        run_case(name, case, torch.float32)


@pytest.mark.parametrize("name", sorted(HALF & set(KERNELS)))
def test_a_kernel_equals_its_reference_in_half_precision(name: str, cases: dict[str, dict[str, Case]]) -> None:
    for case in cases[name].values():
        run_case(name, case, torch.float16)


@pytest.mark.parametrize("shared_enough", [0.0, 1.5])
def test_prefill_by_block_and_by_both_ways(
    shared_enough: float, cases: dict[str, dict[str, Case]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from m3_kernels.sparse_prefill import kernel

    monkeypatch.setattr(kernel, "SHARED_ENOUGH", shared_enough)
    for case in cases["sparse_prefill"].values():
        args, kwargs = case(torch.Generator().manual_seed(2))
        args = tuple(moved(a, torch.float32) for a in args)
        expected = operations()["sparse_prefill"].reference(*args, **kwargs)
        got = kernel.sparse_prefill(*args, **kwargs)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_prefill_where_products_are_known_to_be_small(cases: dict[str, dict[str, Case]]) -> None:
    for case in cases["sparse_prefill"].values():
        args, kwargs = case(torch.Generator().manual_seed(2))
        q, *rest = (moved(a, torch.float32) for a in args)
        longest = float(q.norm(dim=-1).max() * rest[0][rest[0].abs().amax(-1) < 1e4].norm(dim=-1).max())
        assert bounded(kwargs["scale"], longest)
        expected = operations()["sparse_prefill"].reference(q, *rest, **kwargs)
        got = kernel_of("sparse_prefill")(q, *rest, **kwargs, max_product=longest)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_dense_attention_of_long_prompts_through_the_library(cases: dict[str, dict[str, Case]]) -> None:
    from m3_kernels.dense_attention.kernel import attend

    for case in cases["dense_attention"].values():
        args, kwargs = case(torch.Generator().manual_seed(2))
        args = tuple(moved(a, torch.float32 if DEVICE == "cpu" else torch.bfloat16) for a in args)
        expected = operations()["dense_attention"].reference(*args, **kwargs)
        torch.testing.assert_close(attend(*args, **kwargs, many=20), expected, atol=1e-2, rtol=1e-2)


def test_every_length_around_a_page_and_the_selection_limit(cases: Any) -> None:
    """Lengths at which a block begins or ends, and at which rows begin to choose."""
    from m3_kernels.block_topk import block_topk
    from m3_kernels.index_scores import index_scores

    generator = torch.Generator().manual_seed(5)
    page, top_k = 16, 4
    for length in [1, 2, 15, 16, 17, 63, 64, 65, 80, 97]:
        for count in sorted({1, min(length, 5), length}):
            pages = torch.randperm(-(-length // page) + 2, generator=generator).tolist()
            batch = AttentionBatch.build([count], [length], [pages], page_size=page)
            index_q = torch.randn(count, 2, 32, generator=generator)
            index_k = torch.randn(len(pages), page, 32, generator=generator)
            scores = index_scores(index_q, index_k, batch)
            blocks = block_topk(scores, batch.positions_T, top_k=top_k, block_size=page)
            q = torch.randn(count, 8, 32, generator=generator)
            k, v = (torch.randn(len(pages), page, 2, 32, generator=generator) for _ in range(2))

            def case(args: Any, kwargs: Any) -> Case:
                return lambda _: (args, kwargs)

            options = {"top_k": top_k, "block_size": page}
            run_case("dense_attention", case((q, k, v, batch), {"scale": 0.2}), torch.float32)
            run_case("index_scores", case((index_q, index_k, batch), {}), torch.float32)
            run_case("block_topk", case((scores, batch.positions_T), options), torch.float32)
            run_case("sparse_prefill", case((q, k, v, blocks, batch), {"scale": 0.2}), torch.float32)
            if count <= 16:
                arguments = (q, index_q, index_k, k, v, batch)
                run_case("msa_decode", case(arguments, {"scale": 0.2, "top_k": top_k}), torch.float32)


@pytest.mark.parametrize("programs_of_a_group", [1, 2])
@pytest.mark.parametrize(("apart", "groups"), [(64, 8), (1, 8), (17, 64), (64, 64)])
def test_decoding_finds_the_best_blocks_wherever_they_lie(
    apart: int, groups: int, programs_of_a_group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one group of those that are compared, which holds more than are kept of it; side by side; scattered."""
    from m3_kernels.msa_decode import kernel

    monkeypatch.setattr(kernel, "MIN_GROUPS", groups)
    if DEVICE == "cpu":
        monkeypatch.setattr(kernel, "_programs", lambda device, count: (False, programs_of_a_group * count))
    generator = torch.Generator().manual_seed(apart)
    num_blocks, top_k, page = 384, 6, 16
    index_k = torch.rand(num_blocks, page, 32, generator=generator)
    index_k[3 : 3 + 5 * apart : apart] += torch.tensor([3.0, 5.0, 4.0, 2.0, 6.0])[:, None, None]
    pages = torch.randperm(num_blocks, generator=generator)
    batch = AttentionBatch.build([1], [num_blocks * page - 3], [pages.argsort().tolist()], page_size=page)
    q, index_q = torch.randn(1, 4, 32, generator=generator), torch.ones(1, 2, 32)
    k, v = (torch.randn(num_blocks, page, 2, 32, generator=generator) for _ in range(2))
    arguments = (q, index_q, index_k[pages], k, v, batch)
    run_case("msa_decode", lambda _: (arguments, {"scale": 0.2, "top_k": top_k}), torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [5, 8192, 100_000])
def test_decoding_gives_the_same_bits_each_time(length: int) -> None:
    """Programs tell each other what they have found while they run: nobody may read what is not there yet."""
    num_blocks, bf16 = -(-length // 128), torch.bfloat16
    batch = AttentionBatch.build([1], [length], [range(num_blocks)], page_size=128, device=DEVICE)
    q, index_q = torch.randn(1, 64, 128, device=DEVICE, dtype=bf16), torch.randn(1, 4, 128, device=DEVICE, dtype=bf16)
    index_k = torch.randn(num_blocks, 128, 128, device=DEVICE, dtype=bf16)
    k, v = (torch.randn(num_blocks, 128, 4, 128, device=DEVICE, dtype=bf16) for _ in range(2))
    decode = kernel_of("msa_decode")
    first = decode(q, index_q, index_k, k, v, batch, scale=0.1, top_k=16)
    for _ in range(2000):
        assert torch.equal(decode(q, index_q, index_k, k, v, batch, scale=0.1, top_k=16), first)


@pytest.mark.parametrize("blocks", [1, 16, 17, 250, 256, 257, 600, 2049])
@pytest.mark.parametrize("few_blocks", [0, 4096])
def test_selection_of_long_rows_with_ties_nan_and_infinities(
    blocks: int, few_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from m3_kernels.block_topk import kernel

    monkeypatch.setattr(kernel, "FEW_BLOCKS", few_blocks)
    generator = torch.Generator().manual_seed(blocks)
    positions = torch.randint(0, blocks * 128, (6,), generator=generator)
    positions[0] = blocks * 128 - 1
    scores = torch.randint(-20, 20, (6, 2, blocks), generator=generator).float()
    scores[torch.rand(scores.shape, generator=generator) < 0.05] = float("nan")
    scores[scores == 19] = -0.0
    run_case("block_topk", lambda _: ((scores, positions), {"top_k": 16, "block_size": 128}), torch.float32)


def test_what_a_kernel_cannot_take_is_said_before_the_launch(cases: dict[str, dict[str, Case]]) -> None:
    (q, k, v, blocks, batch), options = cases["sparse_prefill"]["a prompt, heads (4, 2)"](torch.Generator())
    q, k, v, blocks, batch = (moved(x, torch.float32) for x in (q, k, v, blocks, batch))
    attend = kernel_of("sparse_prefill")
    with pytest.raises(ValueError, match="3 query heads cannot share 2 key heads"):
        attend(q[:, :3], k, v, blocks, batch, **options)
    with pytest.raises(ValueError, match=r"key cache is torch.float16 and the queries are torch.float32"):
        attend(q, k.half(), v, blocks, batch, **options)
    with pytest.raises(ValueError, match="contiguous int32"):
        attend(q, k, v, blocks.long(), batch, **options)
    with pytest.raises(ValueError, match="head_dim must be a power of two"):
        attend(q[..., :24], k[..., :24].contiguous(), v[..., :24].contiguous(), blocks, batch, **options)
    with pytest.raises(ValueError, match="takes 16 new tokens a sequence, got 50"):
        kernel_of("msa_decode")(q, q[:, :2], k[:, :, 0].contiguous(), k, v, batch, scale=1.0, top_k=2)
    with pytest.raises(ValueError, match="4 local blocks are forced, but only 3 are chosen"):
        kernel_of("block_topk")(
            torch.zeros(1, 1, 8), torch.zeros(1, dtype=torch.int64), top_k=3, block_size=16, local_blocks=4
        )
    with pytest.raises(ValueError, match="must be contiguous float32"):
        kernel_of("block_topk")(torch.zeros(1, 1, 8).half(), torch.zeros(1, dtype=torch.int64), top_k=3, block_size=16)


@pytest.mark.parametrize("form", ["MXFP8", "MXFP4"])
def test_quantised_weights_give_what_their_dequantised_ones_give(
    form: str, cases: dict[str, dict[str, Case]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from m3_kernels.moe_experts import kernel

    # Both with one kind of tile. Stored inputs are added up in another order, so the sums' size decides what is equal.
    tile_sizes = kernel.tile_sizes
    monkeypatch.setattr(kernel, "tile_sizes", lambda rows, num_experts, bits: tile_sizes(rows, num_experts, 4))
    (x, w13, w2, ids, weights), options = cases["moe_experts"][f"50 tokens, 2 of 4, {form}"](torch.Generator())
    experts = kernel_of("moe_experts")
    plain = []
    for matrix, scale in zip((w13, w2), options["scales"], strict=True):
        factors = torch.exp2(scale.double() - 127).float().repeat_interleave(32, -1)
        values = unpacked_e2m1(matrix) if form == "MXFP4" else matrix.float()
        plain.append((values * factors).to(DEVICE))
    x, w13, w2, ids, weights = (t.to(DEVICE) for t in (x, w13, w2, ids, weights))
    expected = experts(x, *plain, ids, weights, **{**options, "scales": None})
    scales = tuple(s.to(DEVICE) for s in options["scales"])
    got = experts(x, w13, w2, ids, weights, **{**options, "scales": scales})
    torch.testing.assert_close(got, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-4)
    with pytest.raises(ValueError, match="comes without scales"):
        experts(x, w13, w2, ids, weights, **{**options, "scales": None})
    with pytest.raises(ValueError, match="needs uint8 scales"):
        experts(x, w13, w2, ids, weights, **{**options, "scales": (scales[0][:, 1:], scales[1])})
