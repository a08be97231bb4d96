"""Pages and slots of the cache move together in K, V and index keys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from m3_model.cache import KVCache
from m3_model.random_checkpoint import tiny_config

PAGES = 5


@pytest.fixture
def cache() -> KVCache:
    """Every tensor holds other random numbers."""
    made = KVCache.zeros(tiny_config(), PAGES)
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors(made):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return made


def tensors(cache: KVCache) -> list[Tensor]:
    return [cache.k_LPSGD, cache.v_LPSGD, cache.index_k_LPSD]


@pytest.mark.parametrize("tokens", [None, 1, 127])
def test_copied_pages_are_equal_up_to_the_tokens_asked_for(cache: KVCache, tokens: int | None) -> None:
    before = [t.clone() for t in tensors(cache)]
    cache.copy_pages([0, 0, 3], [1, 2, 4], tokens=tokens)
    for old, new in zip(before, tensors(cache), strict=True):
        assert torch.equal(new[:, [1, 2, 4], :tokens], old[:, [0, 0, 3], :tokens])
        assert tokens is None or torch.equal(new[:, :, tokens:], old[:, :, tokens:])
        assert torch.equal(new[:, [0, 3]], old[:, [0, 3]])


def test_slots_move_as_if_all_sources_were_read_first(cache: KVCache) -> None:
    before = [t.clone() for t in tensors(cache)]
    cache.copy_slots([0, 1, 2], [1, 2, 0], 10, 20)  # a ring
    for old, new in zip(before, tensors(cache), strict=True):
        assert torch.equal(new[:, [1, 2, 0], 10:20], old[:, [0, 1, 2], 10:20])
        assert torch.equal(new[:, :, :10], old[:, :, :10])
        assert torch.equal(new[:, :, 20:], old[:, :, 20:])
        assert torch.equal(new[:, 3:], old[:, 3:])


def test_pages_read_out_and_written_elsewhere_are_whole(cache: KVCache) -> None:
    before = [t.clone() for t in tensors(cache)]
    content = [cache.read_page(page) for page in (3, 0)]
    assert len(content[0]) == cache.bytes_per_page == sum(t[:, 3].nbytes for t in tensors(cache))
    rows = torch.stack([torch.frombuffer(page, dtype=torch.uint8) for page in content])
    cache.write_pages([1, 4], rows)
    for old, new in zip(before, tensors(cache), strict=True):
        assert torch.equal(new[:, [1, 4]], old[:, [3, 0]])
        assert torch.equal(new[:, [0, 2, 3]], old[:, [0, 2, 3]])
    with pytest.raises(ValueError, match="1 pages have"):
        cache.write_pages([1], rows)
    with pytest.raises(ValueError, match="2 pages have"):
        cache.write_pages([1, 4], rows[:, :-1])


def test_nothing_that_a_layer_reads_is_left_out_of_a_page(cache: KVCache) -> None:
    """Whatever a later layer keeps beside K, V and index keys has to travel with the page, too."""
    views = [value for layer in cache.layers for value in vars(layer).values() if value is not None]
    assert sum(view[0].nbytes for view in views) == cache.bytes_per_page
