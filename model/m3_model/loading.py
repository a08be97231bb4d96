"""Build a decoder from a checkpoint: each tensor is read into its place in a fused matrix and dequantised on the way.

Beside the decoder, memory holds one tensor at a time and a bounded part of the files. One of several ranks reads its
share alone, and keeps the layers' matrices in MXFP8 that are stored so.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from m3_model import names
from m3_model.attention import Attention
from m3_model.checkpoint import Checkpoint
from m3_model.decoder import Decoder, DecoderLayer
from m3_model.group import ALONE, Parallel
from m3_model.layers import GatedMlp
from m3_model.matrix import AnyMatrix, QuantizedMatrix, prepare
from m3_model.moe import Experts, MoE, Router, SeparateExperts, StackedExperts
from m3_model.offload import CpuExperts, ExpertPlacement, StreamedExperts
from m3_model.quantization import GROUP, quantize_4bit
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
    """The decoder of a checkpoint folder, with its image side if it has one, in dtype.

    `experts` says where routed experts are, if not with the others, and whether they are rounded to 4 bits. With
    `parallel` it is the share of this rank; for one rank alone, all matrices are dequantised. `progress` is told how
    many layers are read, and of how many.
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
        ranks = parallel.ranks
        self._keeps_mxfp8 = ranks.size > 1 and checkpoint.has_quantized_layers
        self.share = Share.of(checkpoint.config, ranks.rank, ranks.size, mxfp8=self._keeps_mxfp8)
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

    def _matrix(self, *parts: tuple[str, range], columns: range | None = None) -> AnyMatrix:
        """Rows of matrices of the same inputs as one, in the given order; of all inputs or of some."""
        if not self._keeps(name for name, _ in parts):
            return prepare(self._stacked(parts, columns))
        num_rows, width = self._shape(parts, columns)
        weight = torch.empty(num_rows, width, dtype=torch.float8_e4m3fn, device=self.device)
        scale = torch.empty(num_rows, width // GROUP, dtype=torch.uint8, device=self.device)
        self._read_quantized(weight, scale, parts, columns)
        return QuantizedMatrix(weight, scale)

    def _stacked(self, parts: Sequence[tuple[str, range]], columns: range | None = None) -> Tensor:
        """The same as a tensor of the decoder's dtype."""
        stacked = torch.empty(self._shape(parts, columns), dtype=self.dtype, device=self.device)
        self._read_into(stacked, parts, columns)
        return stacked

    def _read_into(self, target: Tensor, parts: Sequence[tuple[str, range]], columns: range | None = None) -> None:
        first = 0
        for name, rows in parts:
            self.checkpoint.read_into(target[first : first + len(rows)], name, rows=rows, columns=columns)
            first += len(rows)

    def _read_quantized(
        self, weight: Tensor, scale: Tensor, parts: Sequence[tuple[str, range]], columns: range | None = None
    ) -> None:
        first = 0
        for name, rows in parts:
            here = slice(first, first + len(rows))
            self.checkpoint.read_quantized(weight[here], scale[here], name, rows=rows, columns=columns)
            first += len(rows)

    def _keeps(self, matrices: Iterable[str]) -> bool:
        """Whether all of them stay in MXFP8."""
        return self._keeps_mxfp8 and all(self.checkpoint.quantized(name) for name in matrices)

    def _shape(self, parts: Sequence[tuple[str, range]], columns: range | None) -> tuple[int, int]:
        all_columns = range(self.checkpoint.entries[parts[0][0]].shape[1])
        return sum(len(rows) for _, rows in parts), len(all_columns if columns is None else columns)

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
            projection=self._matrix(*((f"{prefix}{part}.weight", rows) for part, rows in parts)),
            output=self._matrix((f"{prefix}o_proj.weight", range(config.hidden_size)), columns=heads),
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
            gate_up=self._matrix((f"{prefix}{gate}.weight", width), (f"{prefix}{up}.weight", width)),
            down=self._matrix((f"{prefix}{down}.weight", range(self.config.hidden_size)), columns=width),
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
        if self._expert_bits(i) < 16:
            return self._stacked_experts(i, self.device)
        if place.where == "cpu" and not on_cpu:
            return CpuExperts(self._on("cpu")._separate_experts(i))
        return self._separate_experts(i) if on_cpu else self._stacked_experts(i, self.device)

    def _expert_bits(self, i: int) -> int:
        """In how many bits the experts of a layer are kept here: 16 are those of the decoder's dtype."""
        if self.experts.bits == 4:
            return 4
        stored = (name for expert in self.share.experts for name in self._expert_matrices(i, expert))
        return 8 if self._keeps(stored) else 16

    def _expert_matrices(self, i: int, expert: int) -> tuple[str, str, str]:
        w1, w3, w2 = (f"{names.expert_prefix(i, expert)}{name}.weight" for name in ("w1", "w3", "w2"))
        return w1, w3, w2

    def _on(self, device: str) -> "DecoderBuilder":
        return DecoderBuilder(self.checkpoint, self.dtype, device, self.experts, parallel=self.parallel)

    def _separate_experts(self, i: int) -> SeparateExperts:
        width = range(self.config.expert_intermediate_size)
        prefixes = [names.expert_prefix(i, expert) for expert in self.share.experts]
        return SeparateExperts(tuple(self._gated_mlp(prefix, width, ("w1", "w3", "w2")) for prefix in prefixes))

    def _stacked_experts(self, i: int, device: torch.device | str, *, pinned: bool = False) -> StackedExperts:
        """The experts of a layer that are here, one read after the other; those of 4 bits are rounded as they come."""
        config, bits, here = self.config, self._expert_bits(i), self.share.experts
        E, C, width = len(here), config.hidden_size, config.expert_intermediate_size

        def made(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(E, rows, columns, dtype=dtype, device=device, pin_memory=pinned)

        dtype, packed = {4: (torch.uint8, 2), 8: (torch.float8_e4m3fn, 1), 16: (self.dtype, 1)}[bits]
        w13, w2 = made(2 * width, C // packed, dtype), made(C, width // packed, dtype)
        scales = None
        if bits < 16:
            scales = made(2 * width, C // GROUP, torch.uint8), made(C, width // GROUP, torch.uint8)
        for place, expert in enumerate(here):
            w1, w3, down = self._expert_matrices(i, expert)
            stacks = ((w1, range(width)), (w3, range(width))), ((down, range(C)),)
            for which, (target, parts) in enumerate(zip((w13[place], w2[place]), stacks, strict=True)):
                if scales is None:
                    self._read_into(target, parts)
                elif bits == 8:
                    self._read_quantized(target, scales[which][place], parts)
                else:
                    values, factors = quantize_4bit(self._stacked(parts))
                    target.copy_(values)
                    scales[which][place].copy_(factors)
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
