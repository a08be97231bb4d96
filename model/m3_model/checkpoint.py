"""Checkpoints in the released format: BF16 or MXFP8, one safetensors file or shards with an index.

A checkpoint is checked as a whole from the files' headers before any tensor is read. Any matrix may be quantised: the
presence of its scale tensor decides.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from m3_model import names
from m3_model.config import M3Config
from m3_model.quantization import GROUP, LARGEST_SCALE, NAN_SCALE, dequantize, quantize
from m3_model.tensor_files import INDEX, SINGLE, TensorEntry, TensorReader, read_headers

FLOATS = ("F32", "BF16", "F16")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used. The message names the first tensor or file that is wrong and what was expected.

    `problems` holds one such sentence for each of them.
    """

    def __init__(self, problem: str, *others: str) -> None:
        super().__init__(problem + (f" (and {len(others)} more such problems)" if others else ""))
        self.problems = (problem, *others)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A folder whose config and tensors fit together. Build it with `open`."""

    config: M3Config
    entries: Mapping[str, TensorEntry]
    """All tensors of the files, those of the image side included."""
    reader: TensorReader
    """How their data is read."""

    @classmethod
    def open(cls, folder: Path | str) -> "Checkpoint":
        """Read the headers and check every tensor's presence, shape and dtype.

        Errors: CheckpointError with all that is wrong; while files are, tensors are not looked at.
        """
        folder = Path(folder)
        try:
            config = M3Config.from_folder(folder)
        except FileNotFoundError as error:
            raise CheckpointError(f"{folder} has no config.json: give the folder of a checkpoint") from error
        except ValueError as error:
            raise CheckpointError(f"{folder}: {error}") from error
        entries, problems = read_headers(folder)
        config = config_of_files(config, entries)
        problems = problems or list(_problems(config, entries))
        if problems:
            raise CheckpointError(*problems)
        return cls(config=config, entries=entries, reader=TensorReader(entries))

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of the tensors that are not read: those of an image side that the config does not describe."""
        read = self.config.vision is not None
        return () if read else tuple(name for name in self.entries if name.startswith(names.OTHER_TOWERS))

    def quantized(self, name: str) -> bool:
        """Whether a matrix is stored in MXFP8."""
        return name + names.SCALE in self.entries

    @property
    def has_quantized_layers(self) -> bool:
        """Whether any matrix of the layers is stored in MXFP8."""
        return any(name.endswith(names.SCALE) and name.startswith(names.LAYERS) for name in self.entries)

    def read(
        self,
        name: str,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        rows: range | None = None,
        columns: range | None = None,
    ) -> Tensor:
        """One tensor, dequantised if it is stored so; those of FLOAT32_NAMES stay float32 whatever the dtype.

        With `rows` or `columns` only these of a matrix. The tensor has memory of its own. Errors: as `read_into`.
        """
        dtype = torch.float32 if name.endswith(names.FLOAT32_NAMES) else dtype
        shape = list(self.entries[name].shape)
        for axis, wanted in enumerate((rows, columns)):
            if wanted is not None:
                shape[axis] = len(wanted)
        tensor = torch.empty(shape, dtype=dtype, device=device)
        self.read_into(tensor, name, rows=rows, columns=columns)
        return tensor

    def read_into(self, target: Tensor, name: str, *, rows: range | None = None, columns: range | None = None) -> None:
        """Fill `target`, of the tensor's shape and any float dtype, so that a fused matrix needs no second copy.

        With `rows` or `columns` only these of a matrix are read. Errors: CheckpointError for a scale that is no number.
        """
        if not self.quantized(name):
            target.copy_(self.reader.view(name, rows, columns))
            return
        if columns is None:
            columns = range(self.entries[name].shape[1])
        groups = range(columns.start // GROUP, -(-columns.stop // GROUP))
        weight_OI = self.reader.view(name, rows, range(groups.start * GROUP, groups.stop * GROUP)).to(target.device)
        matrix_OI = dequantize(weight_OI, self.scales(name, rows, groups).to(target.device), target.dtype)
        first = columns.start - groups.start * GROUP
        target.copy_(matrix_OI[:, first : first + len(columns)])

    def read_quantized(
        self, weight: Tensor, scale: Tensor, name: str, *, rows: range | None = None, columns: range | None = None
    ) -> None:
        """Fill the two tensors with a quantised matrix as it is stored, or with these rows or columns of it.

        Columns are whole groups. Errors: CheckpointError for a scale that is no number, or too large for kernels.
        """
        groups = None
        if columns is not None:
            assert columns.start % GROUP == columns.stop % GROUP == 0
            groups = range(columns.start // GROUP, columns.stop // GROUP)
        scale.copy_(self.scales(name, rows, groups))
        if bool((scale > LARGEST_SCALE).any()):
            raise CheckpointError(
                f"{self.entries[name].file.name}: {name} has a scale of {int(scale.max())}, and several GPUs take "
                f"{LARGEST_SCALE} at most: use the BF16 checkpoint"
            )
        weight.copy_(self.reader.view(name, rows, columns))

    def scales(self, name: str, rows: range | None = None, groups: range | None = None) -> Tensor:
        """The scales of a quantised matrix, or some of them. Errors: CheckpointError for one that is no number."""
        scale_OX = self.reader.view(name + names.SCALE, rows, groups)
        wrong = (scale_OX == NAN_SCALE).nonzero()
        if len(wrong):
            row, group = wrong[0].tolist()
            row, group = row + (rows.start if rows else 0), group + (groups.start if groups else 0)
            file = self.entries[name + names.SCALE].file.name
            raise CheckpointError(
                f"{file}: {name + names.SCALE} holds 0xFF, which is no number, in {len(wrong)} places, the first in "
                f"row {row}, group {group}; expected 0 to 254: fetch the file again"
            )
        return scale_OX


def config_of_files(config: M3Config, entries: Iterable[str]) -> M3Config:
    """The config without its image side where the files hold the text model alone. `entries` names their tensors."""
    return config if any(name.startswith(names.OTHER_TOWERS) for name in entries) else replace(config, vision=None)


def write_checkpoint(
    folder: Path | str,
    config: M3Config,
    tensors: Mapping[str, Tensor],
    *,
    quantized: Callable[[str], bool] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int | None = None,
) -> None:
    """Write config.json and the tensors in the released format.

    `tensors` have released names and any float dtype; matrices for which `quantized` holds are stored in MXFP8, those
    of FLOAT32_NAMES in float32, all others in `dtype`. With `shard_bytes` the tensors are spread over files of
    about that size, with an index. Errors: CheckpointError if a tensor is missing, unknown or of a wrong shape.
    """
    folder = Path(folder)
    stored: dict[str, Tensor] = {}
    specs = names.tensors(config)
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
        save_file(shards[0], folder / SINGLE, metadata={"format": "pt"})
        return
    where: dict[str, str] = {}
    for i, shard in enumerate(shards):
        file_name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file_name, metadata={"format": "pt"})
        where.update(dict.fromkeys(shard, file_name))
    index = {"metadata": {"total_size": sum(map(_nbytes, stored.values()))}, "weight_map": where}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


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


def _problems(config: M3Config, entries: Mapping[str, TensorEntry]) -> Iterator[str]:
    """What keeps these tensors from being the model of this config, one sentence a tensor."""
    specs = names.tensors(config)
    ignored = names.OTHER_TOWERS if config.vision is None else ()
    for name, spec in specs.items():
        entry = entries.get(name)
        if entry is None:
            yield f"{name} is missing: expected with shape {spec.shape}, but no file holds it"
        elif entry.shape != spec.shape:
            yield f"{entry.file.name}: {name} has shape {entry.shape}, expected {spec.shape}"
        elif (scale := entries.get(name + names.SCALE)) is not None:
            yield from _wrong_pair(name, spec, entry, scale)
        elif entry.dtype not in (allowed := ("F32",) if spec.float32 else FLOATS):
            without = f" or {name + names.SCALE} beside it" if entry.dtype == "F8_E4M3" else ""
            yield f"{entry.file.name}: {name} has dtype {entry.dtype}, expected {' or '.join(allowed)}{without}"
    for name, entry in entries.items():
        if name.removesuffix(names.SCALE) not in specs and not name.startswith(ignored):
            yield f"{entry.file.name}: {name} is no tensor of this configuration"


def _wrong_pair(name: str, spec: names.TensorSpec, weight: TensorEntry, scale: TensorEntry) -> Iterator[str]:
    if spec.float32 or len(spec.shape) != 2 or spec.shape[1] % GROUP:
        yield f"{weight.file.name}: {name} cannot be quantised, but {name + names.SCALE} is there"
        return
    expected = (spec.shape[0], spec.shape[1] // GROUP)
    if weight.dtype != "F8_E4M3":
        yield f"{weight.file.name}: {name} has scales and dtype {weight.dtype}, expected F8_E4M3"
    if scale.shape != expected or scale.dtype != "U8":
        yield f"{scale.file.name}: {name + names.SCALE} is {scale.dtype} {scale.shape}, expected U8 {expected}"
