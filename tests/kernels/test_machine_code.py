"""The kernels compile for Hopper, use its matrix instructions, load ahead, and keep everything in registers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="kernels need Triton")

REGISTERS, SHARED_BYTES = 65536, 227 * 1024
WIDE = ["index_scores", "sparse_prefill unions", "sparse_prefill unions bounded", "sparse_prefill by block"]
WIDE += ["dense_attention", "moe_experts gate and up", "moe_experts down"]
WIDE += ["moe_experts gate and up few", "moe_experts down few", "moe_experts down, MXFP8"]
WIDE += ["moe_experts gate and up, MXFP4", "moe_experts down, MXFP4", "mxfp8_linear"]
NARROW = ["msa_decode", "dense_attention few", "mxfp8_linear few"]


@pytest.fixture(scope="module")
def code() -> dict[str, dict[str, int]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    script = Path(__file__).with_name("compile_for_hopper.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def test_nothing_spills(code: dict[str, dict[str, int]]) -> None:
    spilled = {name: c for name, c in code.items() if c["stack"] or c["LDL"] or c["STL"]}
    assert not spilled


@pytest.mark.parametrize("name", WIDE)
def test_wide_products_run_on_warp_groups(name: str, code: dict[str, dict[str, int]]) -> None:
    assert code[name]["HGMMA"] > 0
    assert code[name]["HMMA"] == 0


@pytest.mark.parametrize("name", NARROW)
def test_narrow_products_run_on_tensor_cores(name: str, code: dict[str, dict[str, int]]) -> None:
    assert code[name]["HMMA"] > 0


def test_every_kernel_fits_a_multiprocessor(code: dict[str, dict[str, int]]) -> None:
    assert {name: c["shared"] for name, c in code.items() if c["shared"] > SHARED_BYTES} == {}


def test_every_product_loads_its_next_tiles_ahead(code: dict[str, dict[str, int]]) -> None:
    assert all(c["LDGSTS"] > 0 for c in code.values() if c["HGMMA"] or c["HMMA"])


@pytest.mark.parametrize(
    ("name", "threads"), [("index_scores", 256), ("sparse_prefill unions", 128), ("sparse_prefill by block", 128)]
)
def test_two_programs_fit_a_multiprocessor(name: str, threads: int, code: dict[str, Any]) -> None:
    assert 2 * threads * code[name]["reg"] <= REGISTERS
    assert 2 * code[name]["shared"] <= SHARED_BYTES
