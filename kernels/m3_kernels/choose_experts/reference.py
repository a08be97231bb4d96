"""The choice of experts in plain torch. Legend: T tokens, E experts, K experts a token."""

import torch
from torch import Tensor


def choose_experts(logits_TE: Tensor, bias_E: Tensor, *, top_k: int, scaling: float) -> tuple[Tensor, Tensor]:
    """Returns: (expert ids int64 [T, K], best first, and weights float32 [T, K] that sum to the scaling factor).

    The bias decides who is chosen, never how much a chosen expert counts. Float32 in.
    """
    scores_TE = torch.sigmoid(logits_TE)
    ids_TK = torch.topk(scores_TE + bias_E, top_k, dim=-1).indices
    chosen_TK = scores_TE.gather(1, ids_TK)
    return ids_TK, chosen_TK * (scaling / chosen_TK.sum(-1, keepdim=True))
