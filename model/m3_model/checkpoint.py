"""Checkpoints in the released format: BF16 or MXFP8, one safetensors file or shards with an index.

A checkpoint is checked as a whole from the files' headers before any tensor is read. Any matrix may be quantised: the
presence of its scale tensor decides.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from m3_model import names
from m3_model.config import M3Config
from m3_model.quantization import GROUP, dequantize, quantize

FLOATS = ("F32", "BF16", "F16")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file or the tensor, and what was expected."""


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """What a file's header says about a tensor."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A folder whose config and tensors fit together. Build it with `open`."""

    config: M3Config
    entries: Mapping[str, TensorEntry]
    _handles: dict[tuple[Path, str], Any] = field(default_factory=dict, repr=False, compare=False)
    """Files that were read from stay open: their headers are long, and a release has thousands of tensors."""

    @classmethod
    def open(cls, folder: Path | str) -> "Checkpoint":
        """Read the headers and check every tensor's presence, shape and dtype.

        Errors: CheckpointError for the first tensor or file that is wrong.
        """
        folder = Path(folder)
        try:
            config = M3Config.from_folder(folder)
        except FileNotFoundError as error:
            raise CheckpointError(f"{folder} has no config.json: give the folder of a checkpoint") from error
        except ValueError as error:
            raise CheckpointError(f"{folder}: {error}") from error
        entries = _headers(folder)
        _check(config, entries)
        return cls(config=config, entries=entries)

    def quantized(self, name: str) -> bool:
        """Whether a matrix is stored in MXFP8."""
        return name + names.SCALE in self.entries

    def read(self, name: str, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """One tensor, dequantised if it is stored so; the router's tensors stay float32 whatever the dtype."""
        tensor = self._raw(name, device)
        if self.quantized(name):
            return dequantize(tensor, self._raw(name + names.SCALE, device), dtype)
        return tensor.float() if name.endswith(names.FLOAT32_NAMES) else tensor.to(dtype)

    def _raw(self, name: str, device: torch.device | str) -> Tensor:
        key = (self.entries[name].file, str(device))
        if key not in self._handles:
            self._handles[key] = safe_open(key[0], "pt", device=key[1])
        tensor: Tensor = self._handles[key].get_tensor(name)
        return tensor


def write_checkpoint(
    folder: Path | str,
    config: M3Config,
    tensors: Mapping[str, Tensor],
    *,
    quantized: Callable[[str], bool] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int | None = None,
) -> None:
    """Write config.json and the text tensors in the released format.

    `tensors` have released names and any float dtype; matrices for which `quantized` holds are stored in MXFP8, the
    router in float32, all others in `dtype`. With `shard_bytes` the tensors are spread over files of about that size,
    with an index. Errors: CheckpointError if a tensor is missing, unknown or of a wrong shape.
    """
    folder = Path(folder)
    stored: dict[str, Tensor] = {}
    specs = names.text_tensors(config)
    for name in tensors.keys() - specs.keys():
        raise CheckpointError(f"{name} is no tensor of this configuration")
    for name, spec in specs.items():
        if name not in tensors:
            raise CheckpointError(f"{name} is missing")
        tensor = tensors[name].detach().cpu()
        if tuple(tensor.shape) != spec.shape:
            raise CheckpointError(f"{name} has shape {tuple(tensor.shape)}, expected {spec.shape}")
        if quantized is not None and quantized(name):
            stored[name], stored[name + names.SCALE] = quantize(tensor)
        else:
            stored[name] = tensor.to(torch.float32 if spec.float32 else dtype).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    data = config.to_json()
    if any(name.endswith(names.SCALE) for name in stored):
        plain = [name for name, spec in specs.items() if len(spec.shape) == 2 and name + names.SCALE not in stored]
        data["quantization_config"] = {
            "quant_method": "mxfp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [1, GROUP],
            "ignored_layers": [name.removesuffix(".weight") for name in plain],
        }
    (folder / "config.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    shards = _shards(stored, shard_bytes)
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    where: dict[str, str] = {}
    for i, shard in enumerate(shards):
        file_name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file_name, metadata={"format": "pt"})
        where.update(dict.fromkeys(shard, file_name))
    index = {"metadata": {"total_size": sum(map(_nbytes, stored.values()))}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(stored: Mapping[str, Tensor], shard_bytes: int | None) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in stored.items():
        if shard_bytes is not None and shards[-1] and size + _nbytes(tensor) > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += _nbytes(tensor)
    return shards


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _headers(folder: Path) -> dict[str, TensorEntry]:
    """Every tensor of the folder's safetensors files; an index, where there is one, must agree with them."""
    index = folder / "model.safetensors.index.json"
    where: dict[str, str] = {}
    if index.exists():
        where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    files = [folder / name for name in sorted(set(where.values()))] or [folder / "model.safetensors"]
    entries: dict[str, TensorEntry] = {}
    for path in files:
        if not path.exists():
            raise CheckpointError(f"{path} is missing: fetch the checkpoint again")
        try:
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118  (the handle is no mapping)
                    part = file.get_slice(name)
                    entries[name] = TensorEntry(file=path, dtype=part.get_dtype(), shape=tuple(part.get_shape()))
        except SafetensorError as error:
            raise CheckpointError(f"{path} is damaged ({error}): fetch it again") from error
    for name, file_name in where.items():
        if name not in entries or entries[name].file.name != file_name:
            raise CheckpointError(f"{name} should be in {file_name} according to {index.name}, but is not")
    return entries


def _check(config: M3Config, entries: Mapping[str, TensorEntry]) -> None:
    specs = names.text_tensors(config)
    for name, spec in specs.items():
        entry, scale = entries.get(name), entries.get(name + names.SCALE)
        if entry is None:
            raise CheckpointError(f"{name} is missing")
        if entry.shape != spec.shape:
            raise CheckpointError(f"{name} has shape {entry.shape}, expected {spec.shape}")
        if scale is None:
            allowed = ("F32",) if spec.float32 else FLOATS
            if entry.dtype not in allowed:
                raise CheckpointError(f"{name} has dtype {entry.dtype}, expected {' or '.join(allowed)}")
            continue
        if spec.float32 or len(spec.shape) != 2 or spec.shape[1] % GROUP:
            raise CheckpointError(f"{name} cannot be quantised, but {name + names.SCALE} is there")
        expected = (spec.shape[0], spec.shape[1] // GROUP)
        if entry.dtype != "F8_E4M3":
            raise CheckpointError(f"{name} has scales and dtype {entry.dtype}, expected F8_E4M3")
        if scale.shape != expected or scale.dtype != "U8":
            raise CheckpointError(f"{name + names.SCALE} is {scale.dtype} {scale.shape}, expected U8 {expected}")
    for name in entries:
        if name.removesuffix(names.SCALE) not in specs and not name.startswith(names.OTHER_TOWERS):
            raise CheckpointError(f"{name} is no tensor of this configuration")
