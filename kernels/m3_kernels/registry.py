"""One dispatch point: every operation knows its reference and, by name, its kernel.

A kernel's module is imported at the first call on a CUDA tensor, and where Triton is not installed references run.
`M3_KERNELS=reference` in the environment forces the reference everywhere.
"""

import importlib
import importlib.util
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Generic, ParamSpec, TypeVar, cast

from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_operations: dict[str, "Op[..., object]"] = {}


@dataclass(frozen=True, kw_only=True)
class Op(Generic[P, R]):
    """An operation: calling it runs the kernel for CUDA tensors and the reference for all others.

    The first argument of every operation is a tensor; its device decides.
    """

    name: str
    """Unique name, the same as the operation's package."""
    reference: Callable[P, R]
    """The specification in plain torch, and what CPUs run."""
    kernel: str = ""
    """`module:function` of the kernel with the same signature, or nothing."""

    def __post_init__(self) -> None:
        if self.kernel and self.kernel.count(":") != 1:
            raise ValueError(f"operation {self.name}: kernel must be 'module:function', got {self.kernel!r}")

    @cached_property
    def loaded_kernel(self) -> Callable[P, R]:
        """The kernel's function, imported at first use. Errors: ValueError if the operation has none."""
        if not self.kernel:
            raise ValueError(f"operation {self.name} has no kernel")
        module, function = self.kernel.split(":")
        return cast(Callable[P, R], getattr(importlib.import_module(module), function))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        if self.kernel and isinstance(first, Tensor) and first.is_cuda and triton_is_there() and not reference_forced():
            return self.loaded_kernel(*args, **kwargs)
        return self.reference(*args, **kwargs)


@cache
def triton_is_there() -> bool:
    """Whether kernels can be compiled here at all."""
    return importlib.util.find_spec("triton") is not None


def reference_forced() -> bool:
    """Whether the environment asks for references on every device."""
    return os.environ.get("M3_KERNELS", "") == "reference"


def register(op: Op[P, R]) -> Op[P, R]:
    """Add an operation under its name. Errors: ValueError if the name is taken."""
    if op.name in _operations:
        raise ValueError(f"operation {op.name} is registered twice")
    _operations[op.name] = cast("Op[..., object]", op)
    return op


def operations() -> dict[str, "Op[..., object]"]:
    """Every operation of this package by name; imports the operations' packages, never their kernels."""
    package = importlib.import_module("m3_kernels")
    for module in pkgutil.iter_modules(package.__path__):
        if module.ispkg:
            importlib.import_module(f"m3_kernels.{module.name}")
    return dict(_operations)
