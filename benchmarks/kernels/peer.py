"""The peer that users have today: the Triton kernels that the `vllm` package ships for M3, called as it calls them.

    python -m benchmarks.kernels.peer        # takes the two files out of the wheel into .peers/, which git ignores

Nothing of them is part of this project. Where they are absent the benchmark goes without them. They import four small
modules of their package; `load` puts stand-ins in their place while they are imported.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
import tempfile
import types
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.kernels.data import Layer, Shape

VERSION = "0.33.0"
FOLDER = Path(__file__).parents[2] / ".peers" / f"vllm-{VERSION}"
FILES = ("index_topk", "sparse_attn")
INSIDE = "vllm/models/minimax_m3/common/ops"
BLOCK = 128
"""Tokens of its blocks and pages; not a parameter there."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """Its two modules, under the names of the steps that they do."""

    index: Any
    attention: Any

    def prefill(self, layer: Layer, shape: Shape, scale: float) -> PeerPrefill:
        return PeerPrefill(self, PeerInputs.of(layer), shape, scale)

    def decode(self, layer: Layer, shape: Shape, scale: float, capacity: int) -> PeerDecode:
        return PeerDecode(self, PeerInputs.of(layer), shape, scale, capacity)


@dataclasses.dataclass(frozen=True)
class PeerInputs:
    """A layer as the peer wants it: K and V of a page side by side, heads before tokens; lengths as tensors."""

    q_THD: Tensor
    index_q_TRD: Tensor
    kv_PGSX: Tensor
    index_k_PSD: Tensor
    page_table_BN: Tensor
    query_starts: Tensor
    lengths: Tensor
    prefixes: Tensor
    max_length: int

    @classmethod
    def of(cls, layer: Layer) -> PeerInputs:
        batch = layer.batch
        counts = torch.tensor(batch.query_counts, dtype=torch.int32, device=layer.q_THD.device)
        lengths = torch.tensor(batch.lengths, dtype=torch.int32, device=layer.q_THD.device)
        return cls(
            q_THD=layer.q_THD,
            index_q_TRD=layer.index_q_TRD,
            kv_PGSX=torch.cat((layer.k_PSGD, layer.v_PSGD), -1).transpose(1, 2).contiguous(),
            index_k_PSD=layer.index_k_PSD,
            page_table_BN=batch.page_table_BN.int().contiguous(),
            query_starts=torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int(),
            lengths=lengths,
            prefixes=lengths - counts,
            max_length=max(batch.lengths),
        )


@dataclasses.dataclass(frozen=True)
class PeerPrefill:
    """Its steps for a chunk of queries."""

    peer: Peer
    given: PeerInputs
    shape: Shape
    scale: float

    def score(self) -> Tensor:
        g = self.given
        return self.peer.index.minimax_m3_index_score(
            g.index_q_TRD, g.index_k_PSD, g.page_table_BN, g.query_starts, g.lengths, g.prefixes,
            len(g.q_THD), g.max_length, self.shape.G,
        )  # fmt: skip

    def select(self, scores: Tensor) -> Tensor:
        g = self.given
        return self.peer.index.minimax_m3_index_topk(
            scores, g.query_starts, g.prefixes, len(g.q_THD), self.shape.K, 0, 1
        )

    def attend(self, blocks_GTK: Tensor) -> Tensor:
        g = self.given
        out = torch.empty_like(g.q_THD)
        self.peer.attention.minimax_m3_sparse_attn(
            g.q_THD, g.kv_PGSX, blocks_GTK, g.page_table_BN, g.query_starts, g.lengths, g.prefixes,
            len(g.q_THD), self.shape.G, self.scale, out,
        )  # fmt: skip
        return out

    def chain(self) -> Tensor:
        return self.attend(self.select(self.score()))


@dataclasses.dataclass(frozen=True)
class PeerDecode:
    """Its steps for one new token, captured for contexts of up to `capacity` tokens."""

    peer: Peer
    given: PeerInputs
    shape: Shape
    scale: float
    capacity: int

    def select(self) -> Tensor:
        g = self.given
        return self.peer.index.minimax_m3_index_decode(
            g.index_q_TRD, g.index_k_PSD, g.page_table_BN, g.lengths, self.capacity, self.shape.K, 0, 1,
            self.shape.G, 1, 1,
        )  # fmt: skip

    def attend(self, blocks_GTK: Tensor) -> Tensor:
        g = self.given
        out = torch.empty_like(g.q_THD)
        self.peer.attention.minimax_m3_sparse_attn_decode(
            g.q_THD, g.kv_PGSX, blocks_GTK, g.page_table_BN, g.lengths, self.shape.G, self.scale, out, 1
        )
        return out

    def chain(self) -> Tensor:
        return self.attend(self.select())


def load(folder: Path = FOLDER) -> Peer | None:
    """The peer's kernels, or None where its files are absent."""
    if not all((folder / f"{name}.py").is_file() for name in FILES):
        return None
    with _stand_ins():
        return Peer(*(_module(folder / f"{name}.py") for name in FILES))


def _module(file: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"peer_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Triton looks a kernel's source up by its module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _stand_ins() -> Iterator[None]:
    """The modules of its package that the two files import, as far as they use them."""
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    platform = types.SimpleNamespace(
        is_cuda=torch.cuda.is_available,
        is_device_capability=lambda wanted: wanted == capability,
        is_arch_support_pdl=lambda: capability[0] >= 9,
    )
    round_up: Callable[[int, int], int] = lambda value, multiple: -(-value // multiple) * multiple  # noqa: E731
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"tl": tl, "triton": triton if torch.cuda.is_available() else _untuned_triton()},
        "vllm.utils": {},
        "vllm.utils.math_utils": {"round_up": round_up},
    }
    before = {name: sys.modules.get(name) for name in contents}
    for name, values in contents.items():
        module = types.ModuleType(name)
        module.__dict__.update(values)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old


def _untuned_triton() -> types.SimpleNamespace:
    """Triton, but every kernel takes its first configuration: without a GPU nothing can be timed."""

    def autotune(configs: list[Any], **options: Any) -> Any:
        return triton.autotune(configs[:1], **options)

    return types.SimpleNamespace(**{**vars(triton), "autotune": autotune})


def fetch(folder: Path = FOLDER) -> None:
    """Download the wheel and keep the two files."""
    with tempfile.TemporaryDirectory() as scratch:
        options = ["--quiet", "--no-deps", "--only-binary=:all:", "--platform=manylinux_2_28_x86_64"]
        command = [sys.executable, "-m", "pip", "download", *options, f"--dest={scratch}", f"vllm=={VERSION}"]
        subprocess.run(command, check=True)
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(next(Path(scratch).glob("vllm-*.whl"))) as wheel:
            for name in FILES:
                (folder / f"{name}.py").write_bytes(wheel.read(f"{INSIDE}/{name}.py"))
    print(f"the kernels of vllm {VERSION} lie in {folder}")


if __name__ == "__main__":
    fetch()
