"""Which command runs a repository's tests, and with which Python."""

from __future__ import annotations

import configparser
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from m3_tools.projects import nested_projects

RECORDER_FOLDER = Path(__file__).with_name("recorder")
_SHELL_SYNTAX = re.compile(r"[;&|<>$`(){}\n*?~#!]")
_MAX_IDS = 200
_SCRATCH = "{scratch}"
_CTEST = re.compile(r"^\s*(?:enable_testing\s*\(|include\s*\(\s*CTest\b)", re.MULTILINE | re.IGNORECASE)
_MAKE_TARGET = re.compile(r"^(test|check)\s*:(?!=)", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runner:
    """How tests run. `argv` is complete for kind generic, else the words before the options that the recorder needs."""

    kind: Literal["pytest", "unittest", "generic"]
    argv: tuple[str, ...]
    why: str
    shown: str = ""
    """The command as a person would type it, where that is not `argv`."""
    folders: tuple[str, ...] = ()
    """Of a repository with several projects those in which their tests run; empty: all run at the root."""

    def command(self, root: Path, ids: Sequence[str], scratch: Path) -> list[str]:
        """The full argument list for all tests, or for `ids` where the runner can select."""
        if self.kind == "pytest":
            options = [
                "-p",
                "m3_pytest_recorder",
                "-o",
                f"cache_dir={scratch / 'cache'}",
                f"--rootdir={root}",
                "--maxfail=0",
            ]
            options += ["--continue-on-collection-errors", "--color=no", "--tb=short"]
            # Too many ids for one command line: their files; the recorder keeps only the tests asked for.
            chosen = ids if len(ids) <= _MAX_IDS else dict.fromkeys(i.partition("::")[0] for i in ids)
            return [*self.argv, *options, *chosen]
        if self.kind == "unittest":
            return [*self.argv, str(RECORDER_FOLDER / "m3_unittest_recorder.py"), *ids]
        return [word.replace(_SCRATCH, str(scratch)) for word in self.argv]


def find_python(root: Path, environment: Mapping[str, str] | None = None) -> str:
    """The repository's own interpreter: its .venv or venv, else the given environment's VIRTUAL_ENV, else this one."""
    folders = [root / ".venv", root / "venv"]
    active = (environment or {}).get("VIRTUAL_ENV")
    if active:
        folders.append(Path(active))
    for folder in folders:
        python = folder / "bin" / "python"
        if os.access(python, os.X_OK) and (folder / "pyvenv.cfg").is_file():
            return str(python)
    return sys.executable


def find_runner(
    root: Path, *, command: str | None = None, python: str | None = None, environment: Mapping[str, str] | None = None
) -> Runner | None:
    """The runner for the tests in `root`, or None if nothing there looks like tests."""
    python = python or find_python(root, environment)
    if command is not None and command.strip():
        return _given(command, python)
    if _has_pytest_config(root):
        return Runner(kind="pytest", argv=(python, "-m", "pytest"), why="the repository configures pytest")
    tests = _python_tests(root)
    if not tests and (other := _other_language(root)):
        return other
    projects = [] if tests else nested_projects(root)
    tests = tests or [text for project in projects for text in _python_tests(project)]
    if tests:
        folders = tuple(map(str, projects))
        if any("pytest" in text for text in tests) or _can_import_pytest(python, root):
            why = "the repository has Python tests"
            return Runner(kind="pytest", argv=(python, "-m", "pytest"), why=why, folders=folders)
        return Runner(kind="unittest", argv=(python,), why="the repository has Python tests and its Python no pytest")
    return None


def _given(command: str, python: str) -> Runner:
    why = "the command was given"
    if not _SHELL_SYNTAX.search(command):
        try:
            words = shlex.split(command)
        except ValueError:
            words = []
        if words and os.path.basename(words[0]) in ("pytest", "py.test"):
            # A bare `pytest` means the repository's; a path means exactly that program.
            first = (python, "-m", "pytest") if os.sep not in words[0] else (words[0],)
            return Runner(kind="pytest", argv=(*first, *words[1:]), why=why)
        if len(words) >= 3 and re.fullmatch(r"python[\d.]*", os.path.basename(words[0])) and words[1] == "-m":
            interpreter = python if os.sep not in words[0] else words[0]
            if words[2] == "pytest":
                return Runner(kind="pytest", argv=(interpreter, *words[1:]), why=why)
            if words[2:] == ["unittest"] or words[2:] == ["unittest", "discover"]:
                return Runner(kind="unittest", argv=(interpreter,), why=why)
    return Runner(kind="generic", argv=("/bin/sh", "-c", command), why=why)


def _has_pytest_config(root: Path) -> bool:
    if (root / "pytest.ini").is_file() or (root / "conftest.py").is_file():
        return True
    try:
        pyproject = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
        if "pytest" in pyproject.get("tool", {}):
            return True
    except (OSError, ValueError):
        pass
    for name, section in (("setup.cfg", "tool:pytest"), ("tox.ini", "pytest")):
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read(root / name, "utf-8")
        except (configparser.Error, ValueError):
            continue
        if parser.has_section(section):
            return True
    return False


def _python_tests(root: Path) -> list[str]:
    """The heads of some Python test files, looked for where they usually lie."""
    folders = [
        root,
        *(p for name in ("tests", "test", "src") for p in [root / name, *sorted((root / name).glob("*/"))]),
    ]
    folders += [p / "tests" for p in sorted(root.glob("*/")) if not p.name.startswith(".")]
    heads: list[str] = []
    for folder in folders:
        for pattern in ("test*.py", "*_test.py", "conftest.py"):
            for file in sorted(folder.glob(pattern))[:20]:
                try:
                    heads.append(file.read_text("utf-8", "replace")[:20_000])
                except OSError:
                    continue
        if len(heads) >= 20:
            break
    return heads


def _can_import_pytest(python: str, root: Path) -> bool:
    code = "import importlib.util as u, sys; sys.path.pop(0); sys.exit(u.find_spec('pytest') is None)"
    try:
        result = subprocess.run(
            [python, "-c", code], cwd=root, stdin=subprocess.DEVNULL, capture_output=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


def _other_language(root: Path) -> Runner | None:
    if (root / "go.mod").is_file():
        return Runner(kind="generic", argv=("go", "test", "-v", "./..."), why="there is a go.mod")
    if (root / "Cargo.toml").is_file():
        argv = ("cargo", "test", "--no-fail-fast", "--color=never")
        return Runner(kind="generic", argv=argv, why="there is a Cargo.toml")
    try:
        scripts = json.loads((root / "package.json").read_text("utf-8")).get("scripts", {})
    except (OSError, ValueError, AttributeError):
        scripts = {}
    if isinstance(scripts, dict) and "test" in scripts:
        manager = "pnpm" if (root / "pnpm-lock.yaml").is_file() else "yarn" if (root / "yarn.lock").is_file() else "npm"
        return Runner(kind="generic", argv=(manager, "test"), why="package.json has a test script")
    if _CTEST.search(_text(root / "CMakeLists.txt")):
        return _ctest(root)
    for name in ("GNUmakefile", "makefile", "Makefile"):
        if target := _MAKE_TARGET.search(_text(root / name)):
            return Runner(kind="generic", argv=("make", target[1]), why=f"the {name} has a target {target[1]}")
    return None


def _ctest(root: Path) -> Runner:
    """Builds in `build` where git ignores that, else in a folder of its own: a run leaves nothing behind."""

    def script(folder: str) -> str:
        return f"cmake -S . -B {folder} && cmake --build {folder} && cd {folder} && ctest --output-on-failure"

    where = "build" if _is_ignored(root, "build") else shlex.quote(f"{_SCRATCH}/build")
    argv = ("/bin/sh", "-c", script(where))
    return Runner(kind="generic", argv=argv, why="the CMakeLists.txt has tests", shown=script("build"))


def _is_ignored(root: Path, name: str) -> bool:
    command = ["git", "-C", str(root), "check-ignore", "--quiet", f"{name}/"]
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
