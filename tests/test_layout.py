"""The architecture as a test: who may import whom, what importing must not load, and what lies where."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "m3agent": ROOT / "m3agent",
    "m3_runtime": ROOT / "runtime" / "m3_runtime",
    "m3_model": ROOT / "model" / "m3_model",
    "m3_kernels": ROOT / "kernels" / "m3_kernels",
    "m3_tools": ROOT / "tools" / "m3_tools",
}
MAY_IMPORT = {
    "m3agent": {"m3_runtime", "m3_tools", "m3_model"},
    "m3_runtime": {"m3_model", "m3_kernels"},
    "m3_model": {"m3_kernels"},
    "m3_kernels": set(),
    "m3_tools": set(),
}
RUNTIME_IS_IMPORTED_LATE_IN = {"m3_runtime", "m3_model", "torch"}


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """The first part of every module name that a file imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_one_way(package: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in PACKAGES[package].rglob("*.py")
        for name in imports(path)
        if name in PACKAGES and name != package and name not in MAY_IMPORT[package]
    }
    assert not wrong


def test_the_agent_imports_the_runtime_only_inside_functions() -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {name} at the top"
        for path in PACKAGES["m3agent"].rglob("*.py")
        for name in imports(path, top_level_only=True)
        if name in RUNTIME_IS_IMPORTED_LATE_IN
    }
    assert not wrong


def test_kernels_import_torch_and_triton_alone() -> None:
    allowed = {"torch", "triton", "m3_kernels", *sys.stdlib_module_names}
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in PACKAGES["m3_kernels"].rglob("*.py")
        for name in imports(path)
        if name not in allowed
    }
    assert not wrong


def test_the_four_folders_are_no_packages_themselves() -> None:
    assert not [name for name in ("runtime", "kernels", "model", "tools") if (ROOT / name / "__init__.py").exists()]


@pytest.mark.parametrize("name", ["runtime", "kernels", "model", "tools"])
def test_each_folder_says_what_it_is_for(name: str) -> None:
    assert (ROOT / name / "README.md").read_text().startswith("# ")


def test_the_command_line_loads_no_torch() -> None:
    code = (
        "import sys; from click.testing import CliRunner; import m3agent.cli as c\n"
        "result = CliRunner().invoke(c.cli, ['--help'])\n"
        "assert result.exit_code == 0, result.output\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'm3_runtime', 'm3_model'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    paths = [str(ROOT), *(str(p.parent) for p in PACKAGES.values())]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(paths), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_tracked_tree_stays_small_enough_to_travel() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    sizes = [(ROOT / name).stat().st_size for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    assert sum(sizes) < 48 * 2**20
