"""The safetensors files of a folder: what their headers say, and their tensors one at a time."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
BITS = {"F64": 64, "F32": 32, "BF16": 16, "F16": 16, "F8_E4M3": 8, "U8": 8, "I8": 8, "I32": 32, "I64": 64}
"""Width of the number types that a checkpoint may name."""
MAPPED_BYTES = 256 << 20
"""Read through one mapping at most; then the file is opened anew, which gives its pages in memory back."""


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """What a file's header says about a tensor."""

    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file; 0 for a type of unknown width."""
        return self.elements * BITS.get(self.dtype, 0) // 8


def read_headers(folder: Path) -> tuple[dict[str, TensorEntry], list[str]]:
    """Every tensor of the folder's files, and what is wrong with the files; no tensor is read.

    With an index the files that it names are read, and both must agree; without one, model.safetensors.
    """
    where: dict[str, str] = {}
    if (folder / INDEX).exists():
        try:
            where = _weight_map(folder / INDEX)
        except ValueError as error:
            return {}, [str(error)]
    elif not (folder / SINGLE).exists():
        found = len(list(folder.glob("*.safetensors")))
        return {}, [f"{folder} has neither {SINGLE} nor {INDEX}, only {found} other *.safetensors: fetch it again"]
    entries: dict[str, TensorEntry] = {}
    problems: list[str] = []
    for path in [folder / name for name in sorted(set(where.values()))] or [folder / SINGLE]:
        try:
            header = _read_header(path)
        except ValueError as error:
            problems.append(str(error))
            continue
        for name in header.keys() & entries.keys():
            problems.append(f"{name} is both in {entries[name].file.name} and in {path.name}")
        entries.update(header)
    if where and not problems:
        for name, file_name in where.items():
            if name not in entries or entries[name].file.name != file_name:
                problems.append(f"{name} should be in {file_name} according to {INDEX}, but is not")
        problems += [f"{entries[n].file.name}: {n} is not in {INDEX}" for n in entries if n not in where]
    return entries, problems


def _weight_map(index: Path) -> dict[str, str]:
    try:
        where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{index} has no weight_map ({error!r}): fetch it again") from error
    plain = isinstance(where, dict) and all(isinstance(f, str) and f == Path(f).name for f in where.values())
    if not plain or not where:
        raise ValueError(f"{index}: weight_map must give the name of a file in this folder for each tensor")
    return dict(where)


def _read_header(path: Path) -> dict[str, TensorEntry]:
    if not path.is_file():
        raise ValueError(f"{path} is missing: fetch the checkpoint again")
    entries: dict[str, TensorEntry] = {}
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  (the handle is no mapping)
                part = file.get_slice(name)
                entries[name] = TensorEntry(file=path, dtype=part.get_dtype(), shape=tuple(part.get_shape()))
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise ValueError(f"{path} is damaged or cut off at {size:,} bytes ({error}): fetch it again") from error
    return entries


class TensorReader:
    """Tensors by name, through mappings of the files that are given back before they grow large."""

    def __init__(self, entries: Mapping[str, TensorEntry], *, mapped_bytes: int = MAPPED_BYTES) -> None:
        self._entries = entries
        self._limit = mapped_bytes
        self._handles: dict[Path, Any] = {}
        self._mapped = 0

    def view(self, name: str, rows: range | None = None, columns: range | None = None) -> Tensor:
        """The tensor as it is stored, on the file's pages: use it, then let it go.

        With `rows` or `columns` only these of it, and only their pages are read when they are used.
        """
        entry = self._entries[name]
        shares = [len(part) / max(size, 1) for part, size in zip((rows, columns), entry.shape, strict=False) if part]
        num_bytes = int(entry.nbytes * prod(shares))
        if self._mapped + num_bytes > self._limit:
            self.close()
        self._mapped += num_bytes
        if entry.file not in self._handles:
            # Headers are long and a release has thousands of tensors, so a file is not opened for each of them.
            self._handles[entry.file] = safe_open(entry.file, "pt")
        tensor: Tensor = self._handles[entry.file].get_tensor(name)
        if rows is not None:
            tensor = tensor[rows.start : rows.stop]
        return tensor if columns is None else tensor[:, columns.start : columns.stop]

    def close(self) -> None:
        self._handles.clear()
        self._mapped = 0
