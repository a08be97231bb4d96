"""Cache insertion in plain torch."""

from torch import Tensor


def cache_insert(
    k_TGD: Tensor,
    v_TGD: Tensor,
    index_k_TD: Tensor | None,
    k_PSGD: Tensor,
    v_PSGD: Tensor,
    index_k_PSD: Tensor | None,
    slots_T: Tensor,
) -> None:
    """Write all that new tokens cache; afterwards slot `page * S + offset` holds the token's key, value and index key.

    Shapes: slots_T int64, no slot twice; both index tensors are None in a layer without an index branch.
    Errors: ValueError if only one of the index tensors is given: a cache without index keys would select garbage later.
    """
    if (index_k_TD is None) != (index_k_PSD is None):
        raise ValueError("give the new index keys and the index cache together, or neither")
    k_PSGD.view(-1, *k_PSGD.shape[2:])[slots_T] = k_TGD.to(k_PSGD.dtype)
    v_PSGD.view(-1, *v_PSGD.shape[2:])[slots_T] = v_TGD.to(v_PSGD.dtype)
    if index_k_TD is not None and index_k_PSD is not None:
        index_k_PSD.view(-1, index_k_PSD.shape[2])[slots_T] = index_k_TD.to(index_k_PSD.dtype)
