"""Runs the tests of one module with bugs in place: pytest collects once, then each bug is a forked process with limits.

The bug replaces the code of the loaded function, so nothing is imported again. A bug may do anything, so its process
may not write files, start programs or open connections, and ends by a deadline.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import random
import resource
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from m3_tools.record import FunctionNames, Record, read_record
from m3_tools.report import TestReport, report_text
from m3_tools.runners import RECORDER_FOLDER
from training.bugs import Bug

DEADLINE_S = 2.0
SHOWN_DEADLINE_S = 60
"""The deadline that a report of a hanging test names."""
REPOSITORY = "/home/user/project"
"""Stands in a report for the folder in which the package lies here."""
MODULE_S = 30.0
"""Most time for one module, so that a slow one does not hold up the rest."""
MEMORY_BYTES, FILE_BYTES = 8 << 30, 4 << 20


@dataclasses.dataclass(frozen=True)
class Place:
    """A function to damage: its name, the name of its test, its source as it is shown from `first_line` on, bugs."""

    name: str
    test_name: str
    source: str
    first_line: int
    bugs: tuple[Bug, ...]


@dataclasses.dataclass(frozen=True)
class TestModule:
    """A module at `path` under `root`, tests for it as the text of a pytest file, and the places to damage."""

    __test__ = False

    root: Path
    path: str
    tests: str
    places: tuple[Place, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A bug that a test noticed: the report as the `test` tool prints it, the error's type, the number of tests."""

    place: Place
    bug: Bug
    report: str
    error: str
    total: int


def run_module(module: TestModule, *, other_tests: int, seed: int) -> list[Outcome]:
    """Run every bug of every place whose test passes without it. Call in a process of its own: pytest and the module
    stay loaded.
    """
    stem = module.path.removesuffix(".py").removesuffix("/__init__").rsplit("/", 1)[-1].strip("_")
    test_file = f"tests/test_{stem}.py"
    scratch = Path(tempfile.mkdtemp(prefix=".run-", dir=module.root))  # process ids come again in a long run
    (scratch / "tests").mkdir()
    (scratch / test_file).write_text(module.tests, encoding="utf-8")
    (scratch / "pytest.ini").write_text("[pytest]\n")
    os.chdir(scratch)
    sys.path[:0] = [str(module.root), str(RECORDER_FOLDER)]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        importlib.import_module(module.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
    except Exception:  # whatever an import may raise, the module is of no use then
        return []
    runs = _Runs(module, scratch, other_tests, random.Random(seed))
    arguments = [
        "-q",
        "-s",
        "--tb=native",
        "-p",
        "no:cacheprovider",
        "-p",
        "m3_pytest_recorder",
        "--import-mode=importlib",
    ]
    pytest.main([*arguments, "-c", "pytest.ini", test_file], plugins=[runs])
    return runs.found


class _Runs:
    """The plugin: in place of running the collected tests, runs each bug in a fork."""

    def __init__(self, module: TestModule, scratch: Path, other_tests: int, rng: random.Random) -> None:
        self.module, self.scratch, self.other_tests, self.rng = module, scratch, other_tests, rng
        self.found: list[Outcome] = []
        self.names = FunctionNames(module.root)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        end = time.monotonic() + MODULE_S
        sound = [item for item in session.items if self._passes(item)]
        by_name = {item.name: item for item in sound}
        loaded = _loaded_functions(str(self.module.root / self.module.path))
        for place in self.module.places:
            test = by_name.get(place.test_name)
            functions = loaded.get(place.first_line, [])
            if test is None or not functions:
                continue
            for bug in place.bugs:
                if time.monotonic() > end:
                    return True
                others = [item for item in sound if item is not test]
                chosen = self.rng.sample(others, min(len(others), self.rng.randrange(self.other_tests + 1)))
                items = sorted([*chosen, test], key=sound.index)
                codes = [_damaged_code(f, place, bug) for f in functions]
                if None in codes:
                    continue
                record, timed_out = self._run(items, list(zip(functions, codes, strict=True)))
                if "failed" in record.outcomes.values():
                    self.found.append(self._outcome(place, bug, record, timed_out))
        return True

    def _passes(self, item: pytest.Item) -> bool:
        record, _ = self._run([item], [])
        return list(record.outcomes.values()) == ["passed"]

    def _outcome(self, place: Place, bug: Bug, record: Record, timed_out: bool) -> Outcome:
        report = TestReport(
            command="python -m pytest",
            outcomes=record.outcomes,
            failures=tuple(record.failures.values()),
            exit_code=1,
            duration_s=SHOWN_DEADLINE_S if timed_out else 1.0,
            timed_out=timed_out,
            executed=record.executed,
            scores=record.scores,
        )
        first = next(iter(record.failures.values()))
        text = report_text(report).replace(str(self.module.root), REPOSITORY)
        return Outcome(place, bug, text, first.error_type, len(record.outcomes))

    def _run(
        self, items: Sequence[pytest.Item], replaced: Sequence[tuple[types.FunctionType, Any]]
    ) -> tuple[Record, bool]:
        """The record of the items run in a fork with the functions' code replaced, and whether it had to be ended."""
        path = self.scratch / "record"
        path.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            try:
                self._child(path, items, replaced)
            finally:
                os._exit(0)
        timed_out = not _ended(child, DEADLINE_S)
        if timed_out:
            os.kill(child, signal.SIGTERM)  # the recorder notes where the test hangs
            if not _ended(child, 0.5):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        record = read_record(path, self.module.root, timed_out=timed_out, timeout_s=SHOWN_DEADLINE_S, names=self.names)
        return record, timed_out

    def _child(self, path: Path, items: Sequence[pytest.Item], replaced: Sequence[tuple[Any, Any]]) -> None:
        import m3_pytest_recorder
        import m3_record

        settings = {"M3_TEST_RECORD": str(path), "M3_TEST_ROOT": str(self.scratch), "M3_TEST_TRACE": "1"}
        recorder = m3_record.Recorder(settings)
        recorder.name_inside = _Names(self.module.root, self.scratch)
        m3_pytest_recorder._recorder = recorder
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        recorder.watch_deadline()
        recorder.write("start", runner="pytest", version=pytest.__version__, python=list(sys.version_info[:3]))
        _confine()
        for function, code in replaced:
            function.__code__ = code
        for at, item in enumerate(items):
            following = items[at + 1] if at + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        recorder.finish(0)


class _Names:
    """A file's name in the repository that a user would have: the package's modules and the tests, nothing else."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self._root, self._scratch = f"{root}/", f"{scratch}/"

    def __call__(self, filename: str) -> str | None:
        for folder in (self._scratch, self._root):
            if filename.startswith(folder):
                return filename.removeprefix(folder)
        return None if filename.startswith(("<", "/")) else filename


def _loaded_functions(filename: str) -> dict[int, list[types.FunctionType]]:
    """The functions of a loaded module by their first line, whatever decorators hide them."""
    found: dict[int, list[types.FunctionType]] = {}
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType and thing.__code__.co_filename == filename:
            found.setdefault(thing.__code__.co_firstlineno, []).append(thing)
    return found


def _damaged_code(function: types.FunctionType, place: Place, bug: Bug) -> types.CodeType | None:
    """The damaged function's code at the lines where it is shown; None if it closes over other variables."""
    old = function.__code__
    before = place.first_line - 1
    if place.source[:1] in (" ", "\t"):
        owner = place.name.rpartition(".")[0].rpartition(".")[2]
        header = "\n" * (before - 1) + (f"class {owner}:\n" if owner else "if True:\n")
    else:
        header = "\n" * before
    inherited = old.co_flags & 0x1FE0000  # the module's `from __future__` imports
    try:
        whole = compile(header + bug.source, old.co_filename, "exec", flags=inherited, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    codes = [c for c in _codes(whole) if c.co_name == old.co_name and c.co_firstlineno == old.co_firstlineno]
    return codes[0] if codes and codes[0].co_freevars == old.co_freevars else None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _ended(child: int, seconds: float) -> bool:
    """Whether the process ended within the time; it is then waited for."""
    end = time.monotonic() + seconds
    pause = 0.001
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(pause)
        pause = min(0.02, pause * 1.5)
    return False


_FORBIDDEN = ("os.", "shutil.", "subprocess.", "socket.", "ctypes.", "winreg.", "ftplib.", "urllib.", "webbrowser.")
_HARMLESS = frozenset({"os.putenv", "os.unsetenv", "os.listdir", "os.scandir", "os.walk", "os.fwalk", "ctypes.dlopen"})


def _confine() -> None:
    """From now on this process cannot write files, start programs or connect, and has little memory and time."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    sys.addaudithook(_refuse_effects)


def _refuse_effects(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        _, _, flags = arguments
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError("files cannot be written here")
    elif event == "os.kill" and arguments[0] == os.getpid():
        return  # how the recorder ends a hanging test
    elif event.startswith(_FORBIDDEN) and event not in _HARMLESS:
        raise PermissionError(f"{event} is refused here")
