"""One dispatch point, and no operation without cases."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from m3_kernels.registry import Op, operations, register


class OnCuda(torch.Tensor):
    """A tensor that says it is on a CUDA device: the registry asks no more than that."""

    is_cuda = True  # type: ignore[assignment]


def double(x: torch.Tensor, *, by: int) -> str:
    return f"reference {by}"


def test_every_operation_has_cases_and_every_case_an_operation(cases: dict[str, Any]) -> None:
    assert operations().keys() == cases.keys()
    for name, op in operations().items():
        assert op.name == name
        assert cases[name]


def test_kernels_run_for_cuda_tensors_only(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake_kernel.py").write_text("def run(x, *, by):\n    return f'kernel {by}'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("M3_KERNELS", raising=False)
    op = Op(name="double", reference=double, kernel="fake_kernel:run")
    assert "fake_kernel" not in sys.modules
    assert op(torch.ones(1), by=2) == "reference 2"
    assert "fake_kernel" not in sys.modules
    cuda = torch.ones(1).as_subclass(OnCuda)
    assert op(cuda, by=3) == "kernel 3"
    monkeypatch.setenv("M3_KERNELS", "reference")
    assert op(cuda, by=4) == "reference 4"
    monkeypatch.delenv("M3_KERNELS")
    assert Op(name="double", reference=double)(cuda, by=5) == "reference 5"


def test_mistakes_in_registering_are_refused() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        register(next(iter(operations().values())))
    with pytest.raises(ValueError, match="'module:function', got 'module'"):
        Op(name="x", reference=double, kernel="module")
    with pytest.raises(ValueError, match="operation x has no kernel"):
        _ = Op(name="x", reference=double).loaded_kernel


def test_operations_are_importable_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\nfrom m3_kernels.registry import operations\nprint(len(operations()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert int(done.stdout) == len(operations())


def environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("name", sorted(operations()))
def test_references_are_deterministic_and_leave_their_inputs_alone(
    name: str, cases: dict[str, dict[str, Callable[[torch.Generator], Any]]]
) -> None:
    for make in cases[name].values():
        results = []
        for _ in range(2):
            args, kwargs = make(torch.Generator().manual_seed(3))
            before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
            result = operations()[name](*args, **kwargs)
            results.append(result if isinstance(result, tuple) else (result,))
            for old, new in zip(before, args, strict=True):
                if isinstance(old, torch.Tensor) and name != "norm_rope_insert":
                    assert torch.equal(old, new)
        for first, second in zip(*results, strict=True):
            assert first is second or torch.equal(first, second)
