"""Logits equal those of transformers' minimax_m3_vl text model, which we did not write."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from m3_model.random_checkpoint import tiny_config

TOLERANCE = 1e-4
SMALL_BLOCKS = {"block_size": 16, "top_k_blocks": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_kinds": ("dense",) * 2, "mlp_kinds": ("dense",) * 2, "index_heads": 0, "index_dim": 0},
        {"attention_kinds": ("sparse",) * 2, "mlp_kinds": ("dense",) * 2, **SMALL_BLOCKS},
        {"attention_kinds": ("dense", "dense"), "mlp_kinds": ("moe", "moe"), "index_heads": 0, "index_dim": 0},
        {"num_kv_heads": 1, "index_heads": 1, **SMALL_BLOCKS},
        {"num_kv_heads": 2, "index_heads": 2, **SMALL_BLOCKS},
        {"num_heads": 8, "num_kv_heads": 4, "index_heads": 4, **SMALL_BLOCKS},
        {"index_dim": 24, **SMALL_BLOCKS},
        {"local_blocks": 2, **SMALL_BLOCKS},
        {"block_size": 8, "top_k_blocks": 1},
        {"num_experts": 7, "experts_per_token": 3, "routed_scaling": 1.5, **SMALL_BLOCKS},
        {"swiglu_limit": 0.5, "swiglu_alpha": 1.2, **SMALL_BLOCKS},
        {"tie_word_embeddings": True, **SMALL_BLOCKS},
        {"rotary_dim": 32, "rope_theta": 5e6, **SMALL_BLOCKS},
    ],
    ids=lambda changes: ",".join(f"{key}={value}" for key, value in changes.items() if key not in SMALL_BLOCKS),
)
def test_every_variant_agrees(changes: dict[str, Any], make_oracle: Callable[..., Any], run: Any) -> None:
    oracle = make_oracle(tiny_config(**changes))
    ids = run.tokens(150, oracle.config)
    expected = oracle.expected(ids)
    for sizes in ([150], [70, 17, 1, 62], [1] * 150):
        torch.testing.assert_close(run.chunks(oracle.decoder, ids, sizes), expected, atol=TOLERANCE, rtol=0)


SMALL = {"hidden_size": 32, "head_dim": 16, "index_dim": 16, "rotary_dim": 8, "num_heads": 4}
LONG_VARIANTS: dict[str, dict[str, Any]] = {
    "dense": {"attention_kinds": ("dense",) * 3, "mlp_kinds": ("dense",) * 3, "index_heads": 0, "index_dim": 0},
    "sparse without experts": {"mlp_kinds": ("dense",) * 3},
    "1 group": {"num_kv_heads": 1, "index_heads": 1},
    "2 groups": {},
    "4 groups, tied": {"num_kv_heads": 4, "index_heads": 4, "tie_word_embeddings": True},
}


def agrees_at(length: int, oracle: Any, run: Any) -> None:
    """In one prefill, in chunks, and token by token at the end."""
    ids = run.tokens(length, oracle.config)
    expected = oracle.expected(ids)
    tail = min(length - 1, 40)
    for sizes in ([length], [300] * -(-length // 300), [length - tail, *[1] * tail]):
        torch.testing.assert_close(run.chunks(oracle.decoder, ids, sizes), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [1, 127, 128, 129, 2047, 2048, 2049, 3000])
def test_lengths_around_pages_and_the_first_selection(length: int, make_oracle: Callable[..., Any], run: Any) -> None:
    """Blocks of 128 and 16 chosen, as released: up to 2048 tokens all are chosen, beyond it some are left out."""
    agrees_at(length, make_oracle(tiny_config(**SMALL)), run)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 127, 128, 129, 2047, 2048, 2049, 5000])
@pytest.mark.parametrize("variant", LONG_VARIANTS)
def test_every_length_agrees_in_every_variant(
    variant: str, length: int, make_oracle: Callable[..., Any], run: Any
) -> None:
    agrees_at(length, make_oracle(tiny_config(**{**SMALL, **LONG_VARIANTS[variant]})), run)


@pytest.mark.slow
def test_a_long_text_token_by_token_from_its_start(make_oracle: Callable[..., Any], run: Any) -> None:
    oracle = make_oracle(tiny_config(**SMALL))
    ids = run.tokens(2300, oracle.config)
    stepped = run.chunks(oracle.decoder, ids, [1] * 2300)
    torch.testing.assert_close(stepped, oracle.expected(ids), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [129, 2300])
def test_an_mxfp8_folder_gives_the_logits_of_its_dequantised_twin(
    length: int, make_oracle: Callable[..., Any], run: Any
) -> None:
    """transformers is given the dequantised numbers; ours keeps them as float16, which loses nothing."""
    oracle = make_oracle(tiny_config(**SMALL), quantized=True)
    agrees_at(length, oracle, run)


def test_the_selection_matters_in_these_tests(make_oracle: Callable[..., Any], run: Any) -> None:
    oracle = make_oracle(tiny_config(**SMALL_BLOCKS))
    ids = run.tokens(150, oracle.config)
    dense = make_oracle(tiny_config(block_size=16, top_k_blocks=100))
    difference = (oracle.expected(ids) - dense.expected(ids)).abs().amax(-1)
    assert difference[: 3 * 16].max() < TOLERANCE
    assert difference[100:].min() > 100 * TOLERANCE
