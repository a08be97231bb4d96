"""The kernel benchmark runs from end to end on a CPU, and what it prints is judged as it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="kernels need Triton")

from benchmarks.kernels.roofline import curves, short
from benchmarks.kernels.rows import Row
from benchmarks.kernels.timing import Time

ROOT = Path(__file__).parents[2]


def test_every_part_runs_and_no_result_is_wrong() -> None:
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.kernels", "--tiny"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    for name in ("index scores", "top-k", "attend, real-like", "decode chain", "experts", "norm, rope, insert"):
        assert f"\n{name}" in done.stdout
    assert "WRONG" not in done.stdout
    assert "written to" not in done.stdout


@pytest.mark.parametrize(
    ("name", "value", "error", "verdict"),
    [
        ("attend", 1.5, 1e-3, "passes"),
        ("attend", 1.7, 1e-3, "misses"),
        ("attend", 1.5, 0.02, "WRONG"),
        ("attend", 1.5, float("nan"), "WRONG"),
        ("top-k", 1.5, 0.0, "passes"),
        ("decode top-k", 1.5, 1.0, "WRONG"),
    ],
)
def test_a_wrong_result_passes_no_gate(name: str, value: float, error: float, verdict: str) -> None:
    assert Row(name, 1, Time(1.0, 0.0), value, "ms", at_most=1.6, error=error).verdict == verdict


def test_the_roofline_shows_the_rows_that_do_arithmetic() -> None:
    row = {"name": "attend", "size": 8192, "time": {"ms": 2.0}, "flops": 4e12, "num_bytes": 2e9}
    rows = [{**row, "size": 1 << 20}, row, {**row, "flops": 0.0}]
    assert curves({"rows": rows}) == {"attend": [(8192, 2000.0, 2000.0), (1 << 20, 2000.0, 2000.0)]}
    assert [short(size) for size in (1, 512, 8192, 1 << 20)] == ["1", "512", "8k", "1M"]
