"""Build a decoder from a checkpoint: each tensor is read into its place in a fused matrix and dequantised on the way.

Beside the decoder, memory holds one tensor at a time and a bounded part of the files. One of several ranks reads its
share alone.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from m3_model import names
from m3_model.attention import Attention
from m3_model.checkpoint import Checkpoint
from m3_model.decoder import Decoder, DecoderLayer
from m3_model.group import ALONE, Parallel
from m3_model.layers import GatedMlp
from m3_model.matrix import prepare
from m3_model.moe import Experts, MoE, Router, SeparateExperts, StackedExperts
from m3_model.offload import CpuExperts, ExpertPlacement, StreamedExperts
from m3_model.quantization import quantize_4bit
from m3_model.share import Share
from m3_model.vision.loading import load_encoder


def load_decoder(
    folder: Path | str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    experts: ExpertPlacement | None = None,
    parallel: Parallel = ALONE,
    progress: Callable[[int, int], None] | None = None,
) -> Decoder:
    """The decoder of a checkpoint folder, with its image side if it has one, all matrices dequantised to dtype.

    `experts` says where routed experts are, if not with the others, and whether they are rounded to 4 bits. With
    `parallel` it is the share of this rank. `progress` is told how many layers are read, and of how many.
    Errors: CheckpointError before any tensor is read if the checkpoint is not whole, and for a scale that is no number;
    ValueError if the model cannot be split among so many ranks.
    """
    checkpoint = Checkpoint.open(folder)
    return DecoderBuilder(checkpoint, dtype, device, experts, parallel=parallel, progress=progress).decoder()


class DecoderBuilder:
    """Reads a checkpoint's tensors into the fused matrices that the layers multiply by."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device | str,
        experts: ExpertPlacement | None = None,
        *,
        parallel: Parallel = ALONE,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.device = device
        self.experts = experts or ExpertPlacement()
        self.parallel = parallel
        self.share = Share.of(checkpoint.config, parallel.ranks.rank, parallel.ranks.size)
        self.config = self.share.local(checkpoint.config)
        self._progress = progress or (lambda done, total: None)

    def decoder(self) -> Decoder:
        embedding = self._read(names.EMBEDDING, rows=self.share.vocabulary)
        vision = self.config.vision
        tied = self.config.tie_word_embeddings
        layers = tuple(self._layer(i) for i in range(self.config.num_layers))
        _look_ahead(layers)
        return Decoder(
            config=self.config,
            embedding_VC=embedding,
            layers=layers,
            norm_C=self._read(names.FINAL_NORM),
            head=prepare(embedding if tied else self._read(names.HEAD, rows=self.share.vocabulary)),
            vision=load_encoder(self.checkpoint, vision, self.dtype, self.device) if vision is not None else None,
            parallel=self.parallel,
        )

    def _read(self, name: str, *, rows: range | None = None, columns: range | None = None) -> Tensor:
        return self.checkpoint.read(name, self.dtype, self.device, rows=rows, columns=columns)

    def _stacked(self, matrices: Sequence[tuple[str, range]]) -> Tensor:
        """Rows of matrices of the same inputs as one matrix, in the given order."""
        columns = self.checkpoint.entries[matrices[0][0]].shape[1]
        num_rows = sum(len(rows) for _, rows in matrices)
        stacked = torch.empty(num_rows, columns, dtype=self.dtype, device=self.device)
        first = 0
        for name, rows in matrices:
            self.checkpoint.read_into(stacked[first : first + len(rows)], name, rows=rows)
            first += len(rows)
        return stacked

    def _layer(self, i: int) -> DecoderLayer:
        prefix = names.layer_prefix(i)
        dense = self.config.mlp_kinds[i] == "dense"
        layer = DecoderLayer(
            attention_norm_C=self._read(f"{prefix}input_layernorm.weight"),
            attention=self._attention(f"{prefix}self_attn.", sparse=self.config.attention_kinds[i] == "sparse"),
            mlp_norm_C=self._read(f"{prefix}post_attention_layernorm.weight"),
            mlp=self._gated_mlp(f"{prefix}mlp.", self.share.dense_width) if dense else self._moe(i),
        )
        self._progress(i + 1, self.config.num_layers)
        return layer

    def _attention(self, prefix: str, *, sparse: bool) -> Attention:
        config, share = self.config, self.share
        heads, keys = _times(share.heads, config.head_dim), _times(share.kv_heads, config.head_dim)
        parts = [("q_proj", heads), ("k_proj", keys), ("v_proj", keys)]
        if sparse:
            index = [
                ("index_q_proj", _times(share.kv_heads, config.index_dim)),
                ("index_k_proj", range(config.index_dim)),
            ]
            parts[2:2] = index
        norms = [
            self._norm_rows(f"{prefix}q_norm", config.num_heads),
            self._norm_rows(f"{prefix}k_norm", config.num_kv_heads),
        ]
        groups = [norms]
        if sparse:
            index_norms = [
                self._norm_rows(f"{prefix}index_q_norm", config.index_heads),
                self._norm_rows(f"{prefix}index_k_norm", 1),
            ]
            if config.index_dim == config.head_dim:
                norms.extend(index_norms)
            else:
                groups.append(index_norms)
        return Attention(
            config=config,
            projection=prepare(self._stacked([(f"{prefix}{part}.weight", rows) for part, rows in parts])),
            output=prepare(self._read(f"{prefix}o_proj.weight", columns=heads)),
            norms=tuple(torch.cat(group) for group in groups),
            parallel=self.parallel,
        )

    def _norm_rows(self, name: str, heads: int) -> Tensor:
        """The norm weight that all heads of a kind share, as one row a head."""
        return self._read(f"{name}.weight").expand(heads, -1)

    def _gated_mlp(
        self, prefix: str, width: range, parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    ) -> GatedMlp:
        """The columns `width` between its two matrices."""
        gate, up, down = parts
        return GatedMlp(
            gate_up=prepare(self._stacked([(f"{prefix}{gate}.weight", width), (f"{prefix}{up}.weight", width)])),
            down=prepare(self._read(f"{prefix}{down}.weight", columns=width)),
            alpha=self.config.swiglu_alpha,
            limit=self.config.swiglu_limit,
        )

    def _moe(self, i: int) -> MoE:
        config, share = self.config, self.share
        prefix = f"{names.layer_prefix(i)}block_sparse_moe."
        shared, all_of_it = f"{prefix}shared_experts.", range(config.shared_intermediate_size)
        return MoE(
            router=Router(
                gate_EC=self.checkpoint.read(f"{prefix}gate.weight", torch.float32, self.device),
                bias_E=self.checkpoint.read(f"{prefix}e_score_correction_bias", torch.float32, self.device),
                experts_per_token=config.experts_per_token,
                scaling=config.routed_scaling,
            ),
            experts=self._experts(i),
            shared=self._gated_mlp(shared, share.shared_width),
            num_experts=config.num_experts,
            whole_shared=self._gated_mlp(shared, all_of_it) if share.exchanges else None,
            parallel=self.parallel,
        )

    def _experts(self, i: int) -> Experts:
        place, on_cpu = self.experts, torch.device(self.device).type == "cpu"
        if place.where == "streamed":
            host = self._stacked_experts(i, "cpu", pinned=not on_cpu)
            return StreamedExperts(host, slots=place.slots, device=self.device)
        if place.bits == 4:
            return self._stacked_experts(i, self.device)
        if place.where == "cpu" and not on_cpu:
            return CpuExperts(self._on("cpu")._separate_experts(i))
        return self._separate_experts(i) if on_cpu else self._stacked_experts(i, self.device)

    def _on(self, device: str) -> "DecoderBuilder":
        return DecoderBuilder(self.checkpoint, self.dtype, device, self.experts, parallel=self.parallel)

    def _separate_experts(self, i: int) -> SeparateExperts:
        width = range(self.config.expert_intermediate_size)
        prefixes = [names.expert_prefix(i, expert) for expert in self.share.experts]
        return SeparateExperts(tuple(self._gated_mlp(prefix, width, ("w1", "w3", "w2")) for prefix in prefixes))

    def _stacked_experts(self, i: int, device: torch.device | str, *, pinned: bool = False) -> StackedExperts:
        """The experts of a layer that are here, one read after the other; those of 4 bits are rounded as they come."""
        config, four, here = self.config, self.experts.bits == 4, self.share.experts
        E, C, width = len(here), config.hidden_size, config.expert_intermediate_size

        def made(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(E, rows, columns, dtype=dtype, device=device, pin_memory=pinned)

        dtype, packed = (torch.uint8, 2) if four else (self.dtype, 1)
        w13, w2 = made(2 * width, C // packed, dtype), made(C, width // packed, dtype)
        scales = (made(2 * width, C // 32, dtype), made(C, width // 32, dtype)) if four else None
        for place, expert in enumerate(here):
            prefix = names.expert_prefix(i, expert)
            if scales is None:
                self.checkpoint.read_into(w13[place, :width], f"{prefix}w1.weight")
                self.checkpoint.read_into(w13[place, width:], f"{prefix}w3.weight")
                self.checkpoint.read_into(w2[place], f"{prefix}w2.weight")
                continue
            gate_up = self._stacked([(f"{prefix}w1.weight", range(width)), (f"{prefix}w3.weight", range(width))])
            for target, scale, matrix in (
                (w13, scales[0], gate_up),
                (w2, scales[1], self._read(f"{prefix}w2.weight")),
            ):
                values, factors = quantize_4bit(matrix)
                target[place].copy_(values)
                scale[place].copy_(factors)
        return StackedExperts(
            w13_EXC=w13, w2_ECI=w2, alpha=config.swiglu_alpha, limit=config.swiglu_limit, scales=scales
        )


def _look_ahead(layers: Sequence[DecoderLayer]) -> None:
    """Let every layer's streamed experts guess what the next layer will need."""
    streamed = [layer.mlp for layer in layers if isinstance(layer.mlp, MoE)]
    for before, after in itertools.pairwise(streamed):
        if isinstance(before.experts, StreamedExperts) and isinstance(after.experts, StreamedExperts):
            before.experts.look_ahead(after.router, after.experts)


def _times(heads: range, size: int) -> range:
    """The rows of a projection that belong to these heads."""
    return range(heads.start * size, heads.stop * size)
