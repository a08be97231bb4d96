"""What is known of a checkpoint without reading its weights: its sizes, and where on this machine it fits."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from m3agent.errors import M3Error

if TYPE_CHECKING:
    from m3_model.config import M3Config

SCHEMA = 1
"""Of the JSON; it rises when a field changes its meaning or goes."""
SHORTEST_CONTEXT, LONGEST_CONTEXT = 8 << 10, 1 << 20
"""Contexts whose memory is told, in tokens: every power of two between, as far as the model reads."""


def describe(folder: Path) -> dict[str, Any]:
    """Facts as JSON values; sizes in bytes, lengths in tokens. A folder with config.json alone will do.

    Errors: M3Error when there is no readable config of an M3 model.
    """
    from m3_model.checkpoint import config_of_files
    from m3_model.config import M3Config
    from m3_model.sizes import cache_bytes_per_token, count_parameters, weight_bytes
    from m3_model.tensor_files import read_headers
    from m3_runtime.parallel.planner import plans

    try:
        config = M3Config.from_folder(folder)
        data: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise M3Error(f"{folder} has no config.json: give nano or the folder of a checkpoint") from error
    except (OSError, ValueError) as error:
        raise M3Error(f"{folder} is no checkpoint: {error}") from error
    files = sorted(folder.glob("*.safetensors"))
    entries, problems = read_headers(folder) if files else ({}, ["no weights are here, only the config"])
    if entries:
        config = config_of_files(config, entries)
    parameters = count_parameters(config)
    precision = (data.get("quantization_config") or {}).get("quant_method") or data.get("torch_dtype")
    stored: Counter[str] = Counter()
    for entry in entries.values():
        stored[entry.dtype] += entry.nbytes
    lengths = [n for n in _powers() if n <= config.max_positions] or [config.max_positions]
    return {
        "schema": SCHEMA,
        "folder": str(folder),
        "problem": problems[0] if problems else None,
        "parameters": parameters.total,
        "active_parameters": parameters.active,
        "image_parameters": parameters.vision,
        "precision": precision,
        "disk_bytes": sum(file.stat().st_size for file in files),
        "files": len(files),
        "stored_bytes": dict(stored),
        "layers": {
            "dense attention": config.attention_kinds.count("dense"),
            "sparse attention": config.num_sparse_layers,
            "dense feed-forward": config.mlp_kinds.count("dense"),
            "experts": config.mlp_kinds.count("moe"),
        },
        "experts": config.num_experts,
        "experts_per_token": config.experts_per_token,
        "context_tokens": config.max_positions,
        "weights_bytes": {"bfloat16": weight_bytes(parameters, 2), "float32": weight_bytes(parameters, 4)},
        "cache": [
            {
                "tokens": tokens,
                "bf16_bytes": tokens * cache_bytes_per_token(config, 2),
                "fp8_bytes": tokens * cache_bytes_per_token(config, 1),
            }
            for tokens in lengths
        ],
        "fits": [
            _fit(config, place, free, dtype, element_bytes) for place, free, dtype, element_bytes in _places_here()
        ],
        "gpus": [dataclasses.asdict(plan) for plan in plans(config, _free_of_gpus(), mxfp8=precision == "mxfp8")],
    }


def _powers() -> Iterator[int]:
    tokens = SHORTEST_CONTEXT
    while tokens <= LONGEST_CONTEXT:
        yield tokens
        tokens *= 2


def _places_here() -> Iterator[tuple[str, int, str, int]]:
    """Where a model can be loaded: name, free bytes, and the dtype that the engine uses there with its bytes."""
    import torch

    yield "cpu", psutil.virtual_memory().available, "float32", 4
    for i in range(torch.cuda.device_count()):
        yield f"cuda:{i} {torch.cuda.get_device_name(i)}", torch.cuda.mem_get_info(i)[0], "bfloat16", 2


def _free_of_gpus() -> list[int]:
    import torch

    return [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]


def _fit(config: M3Config, place: str, free: int, dtype: str, element_bytes: int) -> dict[str, Any]:
    """The longest context whose cache has room beside the weights: the engine holds all of a model in one place."""
    from m3_model.sizes import cache_bytes_per_token, count_parameters, weight_bytes

    weights = weight_bytes(count_parameters(config), element_bytes)
    per_token = cache_bytes_per_token(config, element_bytes)
    pages = max(0, free - weights) // (per_token * config.block_size)
    return {
        "place": place,
        "free_bytes": free,
        "dtype": dtype,
        "weights_bytes": weights,
        "context_tokens": min(pages * config.block_size, config.max_positions),
    }


def to_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The facts as a page for people."""
    stored = ", ".join(f"{dtype} {size(n)}" for dtype, n in facts["stored_bytes"].items())
    layers = ", ".join(f"{count} {kind}" for kind, count in facts["layers"].items())
    image = f", and {facts['image_parameters']:,} of the image side"
    rows = {
        "folder": facts["folder"],
        "problem": facts["problem"],
        "parameters": f"{facts['parameters']:,}{image if facts['image_parameters'] else ''}",
        "active per token": f"{facts['active_parameters']:,}, without the embedding table and the head",
        "precision": facts["precision"],
        "on disk": f"{size(facts['disk_bytes'])}, files: {facts['files']}" + (f"; {stored}" if stored else ""),
        "layers": layers,
        "experts": f"{facts['experts_per_token']} of {facts['experts']} a token, and a shared one",
        "context": f"{facts['context_tokens']:,} tokens",
        "weights in memory": ", ".join(f"{size(n)} in {dtype}" for dtype, n in facts["weights_bytes"].items()),
    }
    for label, value in rows.items():
        if value is not None:
            yield f"{label:<18} {value}"
    yield f"\n{'context':>18} {'cache in bf16':>14} {'in fp8':>12}"
    for row in facts["cache"]:
        yield f"{row['tokens']:>18,} {size(row['bf16_bytes']):>14} {size(row['fp8_bytes']):>12}"
    yield "\nThe cache is in bf16 or float32, not in fp8 yet. MXFP8 stays so on several GPUs; one dequantises it.\n"
    for fit in facts["fits"]:
        yield f"{fit['place']:<18} {_verdict(fit)}"
    yield from gpu_table(facts["gpus"])


def gpu_table(gpus: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What --gpus may be here, a line each; nothing without GPUs."""
    if not gpus:
        return
    yield f"\n{'--gpus':>6} {'dtype':>9} {'weights a GPU':>14} {'free':>10} {'cache, 128k tokens':>19}  context"
    for plan in gpus:
        cache = size(plan["cache_bytes_per_token"] << 17)
        context = f"{plan['context_tokens']:,} tokens" if plan["context_tokens"] else "does not fit"
        weights, free = size(plan["weights_bytes"]), size(plan["free_bytes"])
        yield f"{plan['ranks']:>6} {plan['dtype']:>9} {weights:>14} {free:>10} {cache:>19}  {context}"


def _verdict(fit: Mapping[str, Any]) -> str:
    have = f"{size(fit['free_bytes'])} free, the weights need {size(fit['weights_bytes'])} in {fit['dtype']}"
    if fit["free_bytes"] < fit["weights_bytes"]:
        return f"does not fit: {have}"
    if not fit["context_tokens"]:
        return f"does not fit: {have}, which leaves no room for a page of the cache"
    return f"fits with {fit['context_tokens']:,} tokens of context: {have}"


def size(num_bytes: int) -> str:
    """Decimal units, three digits or more."""
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:,.2f} {name}"
    return f"{num_bytes / 1e3:,.1f} kB"
