"""Compile every kernel for an H200 at M3's shapes, without a GPU, and print what the machine code is made of, as JSON.

    python tests/kernels/compile_for_hopper.py

A process of its own, because Triton's interpreter and its compiler cannot be used in one.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from m3_kernels.block_topk import kernel as topk
from m3_kernels.choose_experts import kernel as choice
from m3_kernels.dense_attention import kernel as dense
from m3_kernels.index_scores import kernel as scores
from m3_kernels.moe_experts import kernel as moe
from m3_kernels.msa_decode import kernel as decode
from m3_kernels.mxfp8_linear import kernel as linear
from m3_kernels.norm_rope_insert import kernel as heads
from m3_kernels.rms_norm import kernel as norm
from m3_kernels.sparse_prefill import by_block, unions
from m3_kernels.swiglu import kernel as activation

BATCH = {"query_starts": "*i32", "lengths": "*i32", "page_table": "*i32"}
LISTS = dict.fromkeys(
    ("chosen", "by_block", "edge_counts", "edge_ranks", "edge_pages", "edge_starts", "items", "item_starts"), "*i32"
) | {"edges": "*i64", "positions": "*i64", "num_items": "*i32"}
PREFILL = {"QUERIES": 4, "S": 128}
INDEX = {"R": 4, "HEADS": 4, "S": 128, "D": 128}
GROUPED = {"EXPERTS": 128, "C": 6144, "WIDTH": 3072}
EXPERTS: list[tuple[str, int, int, int]] = [
    # name, rows, bits, which of the two products
    (f"{name}{size}{form}", rows, bits, which)
    for which, name in enumerate(("gate and up", "down"))
    for size, rows in (("", 32768), (" middle", 2048), (" few", 4))
    for form, bits in (("", 16), (", MXFP8", 8), (", MXFP4", 4), (", float32", 32))
]
EXPERT_TENSORS = ("x", "w13", "w2", "w13_scale", "w2_scale", "hidden", "down")
BF16_WEIGHTS = dict.fromkeys(EXPERT_TENSORS, "*bf16")
BF16_WEIGHTS |= dict.fromkeys(("flat", "order", "starts"), "*i64")
OTHER_WEIGHTS: dict[int, dict[str, str]] = {
    32: dict.fromkeys(EXPERT_TENSORS, "*fp32"),
    16: {},
    8: {"w13": "*i16", "w2": "*i16", "w13_scale": "*u8", "w2_scale": "*u8"},
    4: {"w13": "*i16", "w2": "*i16", "w13_scale": "*u8", "w2_scale": "*u8"},
}


def expert_cases() -> list[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """Both products, with the tiles that the kernel chooses."""
    cases = []
    for name, rows, bits, which in EXPERTS:
        tile = moe.tile_sizes(rows, 128, bits)[which]
        options = {key: tile[key] for key in ("num_warps", "num_stages")}
        types = BF16_WEIGHTS | OTHER_WEIGHTS[bits] | {"weights": "*fp32", "alpha": "fp32", "limit": "fp32"}
        values = GROUPED | tile | {"FEW": rows <= moe.FEW_ROWS, "BITS": min(bits, 16), "K": 4, "PACKED": bits != 32}
        cases.append((f"moe_experts {name}", (moe._gate_up, moe._down)[which], types, values, options))
    return cases


CASES: list[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]] = [
    # name, function, types of what is not an int32, compile-time values, options
    ("index_scores", scores._score, BATCH | {"q": "*bf16", "k": "*bf16", "scores": "*fp32"},
     INDEX | {"QUERIES": 32, "TOGETHER": 4}, {"num_warps": 8, "num_stages": 2, "maxnreg": 128}),
    ("block_topk", topk._choose, {"scores": "*fp32", "positions": "*i64", "chosen": "*i32"},
     {"TOP_K": 16, "SLOTS": 16, "GROUPS": 256, "DEPTH": 32, "LEVELS": 3, "BY_COMPARISON": False}, {"num_warps": 1}),
    ("block_topk few", topk._choose, {"scores": "*fp32", "positions": "*i64", "chosen": "*i32"},
     {"TOP_K": 16, "SLOTS": 16, "GROUPS": 32, "DEPTH": 8, "LEVELS": 2, "BY_COMPARISON": True}, {"num_warps": 1}),
    ("sparse_prefill unite", unions.unite,
     BATCH | LISTS | dict.fromkeys(("pages", "blocks", "choosers", "counts"), "*i32"),
     PREFILL | {"K": 16, "SLOTS": 16}, {"num_warps": 1}),
    *((f"sparse_prefill unions{name}", unions.attend_unions,
       BATCH | dict.fromkeys(("pages", "blocks", "choosers", "counts"), "*i32")
       | dict.fromkeys(("q", "k", "v", "out"), "*bf16") | {"scale_log2": "fp32"},
       PREFILL | {"GROUP": 16, "HEADS": 16, "D": 128, "LIST": 64, "KEYS": keys, "BOUNDED": bounded},
       {"num_warps": 4, "num_stages": stages})
      for name, bounded, keys, stages in (("", False, 64, 4), (" bounded", True, 32, 5))),
    ("sparse_prefill by block", by_block.attend_items,
     LISTS | dict.fromkeys(("q", "k", "v", "parts"), "*bf16") | {"parts_log": "*fp32", "scale_log2": "fp32"},
     PREFILL | {"GROUP": 16, "HEADS": 16, "D": 128, "G": 4, "K": 16, "KEYS": 64},
     {"num_warps": 4, "num_stages": 3}),
    ("sparse_prefill add up", by_block.add_up, LISTS | {"parts": "*bf16", "parts_log": "*fp32", "out": "*bf16"},
     {"ROWS": 16, "G": 4, "GROUP": 16, "HEADS": 16, "D": 128, "K": 16, "SLOTS": 16}, {"num_warps": 4}),
    ("msa_decode", decode._decode,
     BATCH | dict.fromkeys(("q", "index_q", "index_k", "k", "v", "out"), "*bf16")
     | dict.fromkeys(("arrived", "keys", "best"), "*i64") | {"partial": "*i32", "scale_log2": "fp32"},
     {"ROWS": 16, "PROGRAMS": 128, "GROUPS": 64, "G": 4, "G_TILE": 4, "INDEX_D": 128, "GROUP": 16, "HEADS": 16,
      "D": 128, "S": 128, "TOP_K": 16, "SLOTS": 16, "CUT": 4, "LEVELS": 4, "KEYS": 64, "PARTS": 32, "FIRST": 1,
      "LAST": 3, "STAGES": decode.STAGES, "KEPT": decode.KEPT, "EARLY": decode.EARLY}, {"num_warps": decode.WARPS}),
    *((f"dense_attention{name}", dense._attend,
       BATCH | {"arrived": "*i32", "scale_log2": "fp32"} | dict.fromkeys(("q", "k", "v", "out"), "*bf16")
       | dict.fromkeys(("parts_acc", "parts_top", "parts_sum"), "*fp32"),
       {"GROUP": 16, "HEADS": 16, "D": 128, "S": 128, "KEYS": 64, "MIN_STEPS": 4} | sizes,
       {"num_warps": warps, "num_stages": 3})
      for name, sizes, warps in (("", {"QUERIES": 8, "PARTS": 1}, 8), (" few", {"QUERIES": 1, "PARTS": 64}, 4))),
    ("choose_experts", choice._choose,
     {"logits": "*fp32", "bias": "*fp32", "ids": "*i64", "weights": "*fp32", "scaling": "fp32"},
     {"K": 4, "WIDTH": 128, "SLOTS": 4}, {"num_warps": 1}),
    ("swiglu", activation._swiglu, {"gate_up": "*bf16", "out": "*bf16", "alpha": "fp32", "limit": "fp32"},
     {"WIDTH": activation.WIDTH}, {"num_warps": 4}),
    *expert_cases(),
    ("moe_experts add up", moe._add_up, {"down": "*bf16", "flat": "*i64", "out": "*bf16"},
     {"K": 4, "N": 1024}, {"num_warps": 4}),
    *((f"mxfp8_linear{name}", linear._linear, {"x": "*bf16", "w": "*i16", "scale": "*u8", "out": "*bf16"},
       {"C": 6144, "PACKED": True} | linear.tile_sizes(tokens),
       {key: linear.tile_sizes(tokens)[key] for key in ("num_warps", "num_stages")})
      for name, tokens in (("", 64), (" few", 1))),
    ("mxfp8_linear multiply out", linear._multiply_out, {"w": "*u8", "scale": "*u8", "out": "*bf16"}, {"BLOCK": 4096},
     {"num_warps": 4}),
    ("norm_rope_insert", heads._norm_rope_insert,
     dict.fromkeys(("projected", "norms", "q_out", "index_q_out", "k_cache", "v_cache", "index_cache"), "*bf16")
     | {"cos": "*fp32", "sin": "*fp32", "slots": "*i64", "eps": "fp32"},
     {"H": 64, "G": 4, "R": 4, "INDEX": True, "F": 32, "F_TILE": 32, "D": 128, "REST": 64, "ROWS": heads.HEADS},
     {"num_warps": heads.WARPS}),
    ("rms_norm", norm._rms_norm,
     dict.fromkeys(("x", "residual", "weight", "normed", "total"), "*bf16") | {"eps": "fp32"},
     {"ADD": True, "WIDTH": 8192}, {"num_warps": 8}),
]  # fmt: skip


def compiled(function: Any, types: dict[str, str], values: dict[str, Any], options: dict[str, Any]) -> dict[str, int]:
    """Registers, bytes of stack and of shared memory, and how often an instruction stands in the code."""
    constants = {name for name in values if name in function.arg_names}
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in function.arg_names}
    # What a launch would find out by itself: pointers and strides are multiples of 16.
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or "stride" in name
    }
    source = ASTSource(function, signature, {n: values[n] for n in constants}, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    tool = next(Path(triton.__file__).parent.rglob("cuobjdump"))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True).stdout
        code = subprocess.run([tool, "-sass", file.name], capture_output=True, text=True).stdout
    found = {key.lower(): int(value) for key, value in re.findall(r"\b(REG|STACK):(\d+)", usage)}
    counts = {name: len(re.findall(rf"\b{name}\b", code)) for name in ("HGMMA", "HMMA", "LDGSTS", "LDL", "STL")}
    return {**found, "shared": made.metadata.shared, **counts}


if __name__ == "__main__":
    print(json.dumps({name: compiled(*rest) for name, *rest in CASES}, indent=1))
