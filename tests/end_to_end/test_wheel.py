"""The wheel as a person installs it: whole, beside other people's packages, run from inside a difficult repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
PACKAGES = ("m3agent", "m3_runtime", "m3_kernels", "m3_model", "m3_tools")
NANO_FILES = ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def target(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing in it but the wheel."""
    folder = tmp_path_factory.mktemp("target")
    install(folder, str(wheel))
    return folder


def install(folder: Path, *what: str) -> None:
    command = [*PIP, "install", "--no-deps", "--target", str(folder), *what]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def hashes(folder: Path) -> dict[str, str]:
    """Name and hash of every file; compiled files are made anew by each run."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_wheel_holds_our_packages_alone_and_all_of_nano(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        tops = {name.split("/")[0] for name in names}
        assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
        for name in NANO_FILES:
            original = ROOT / "model/m3_model/nano" / name
            assert archive.read(f"m3_model/nano/{name}") == original.read_bytes()
    command = ["git", "ls-files", "m3agent", *(f"*/{name}" for name in PACKAGES[1:])]
    tracked = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert tracked
    sources = {name.removeprefix(name.split("/m3_")[0] + "/") if "/m3_" in name else name for name in tracked}
    assert sources <= set(names)


def test_m3_runs_inside_a_repository_whose_names_are_ours(target: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for name in ("tools", "model", "runtime", "kernels", "m3_toolbox"):
        (repository / name).mkdir(parents=True)
        (repository / name / "__init__.py").write_text("raise SystemExit('the wrong package was imported')\n")
    for name in ("dataclasses.py", "json.py", "typing.py", "click.py"):
        (repository / name).write_text("raise SystemExit('the wrong module was imported')\n")
    environment = {**os.environ, "PYTHONPATH": str(target), "M3_HOME": str(tmp_path / "home")}
    environment.pop("PYTHONSAFEPATH", None)
    version = run([sys.executable, "-m", "m3agent", "--version"], repository, environment)
    assert version.strip().startswith("m3")
    modules = "m3agent.cli, m3agent.fix.flow, m3_tools.read, m3_runtime.chat.session, m3_kernels.registry"
    program = f"import {modules}; print(m3agent.__file__, m3_runtime.chat.session.__file__)"
    places = run([sys.executable, "-P", "-c", program], repository, environment).split()
    assert len(places) == 2
    assert all(Path(place).is_relative_to(target) for place in places)


def test_the_wheel_leaves_kernels_of_hugging_face_as_it_was(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    try:
        install(folder, "kernels")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("needs the package index, for the package `kernels`")
    before = hashes(folder)
    assert any(name.startswith("kernels/") for name in before)
    install(folder, str(wheel))
    after = hashes(folder)
    assert {name: after.get(name) for name in before} == before
    assert {name.split("/")[0] for name in after} >= set(PACKAGES)


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
