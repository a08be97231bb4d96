"""What the pages of a cache depend on beside the tokens, as one short value."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

import m3_kernels
import m3_model

_READ_WHOLE_BYTES = 2**30
"""Weights up to this size are read and hashed (nano's take 20 ms), larger ones are known by name, size and time."""


def fingerprint(folder: Path, *, dtype: str, device: str) -> bytes:
    """32 bytes that change with the weights, with how they are computed with, and with the code that does it.

    Weights of more than 1 GiB count as the same while their files have the same place, names, sizes and times of
    change. Raises OSError.
    """
    digest = hashlib.sha256(f"{dtype} {device} {torch.__version__}\n".encode())
    digest.update((folder / "config.json").read_bytes())
    weights = sorted(folder.glob("*.safetensors"))
    is_small = sum(path.stat().st_size for path in weights) <= _READ_WHOLE_BYTES
    for path in weights:
        stat = path.stat()
        known_by = hashlib.sha256(path.read_bytes()).hexdigest() if is_small else f"{path.resolve()} {stat.st_mtime_ns}"
        digest.update(f"{path.name} {stat.st_size} {known_by}\n".encode())
    for package in (m3_model, m3_kernels):
        for root in package.__path__:
            for path in sorted(Path(root).rglob("*.py")):
                digest.update(path.read_bytes())
    return digest.digest()
