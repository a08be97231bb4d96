"""What a test run tells its observer: one JSON object a line, written as things happen, so that a killed run loses
nothing.

This folder is put on the path of the *tested* repository's Python. Its files use the standard library alone, import
nothing of the tools, and run on Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

_NOT_OURS = {"site-packages", "dist-packages", "node_modules", ".venv", "venv", ".tox", ".nox", ".m3", ".git"}
_FUNCTION_CODE = 0x1  # CO_OPTIMIZED: set for functions, not for modules and class bodies
MAX_TRACED_FAILURES = 50
SETTINGS = (
    "M3_TEST_RECORD", "M3_TEST_ONLY", "M3_TEST_ROOT", "M3_TEST_TRACE", "M3_TEST_STOP", "M3_TEST_FOLDERS",
)  # fmt: skip


def take_settings() -> dict[str, str]:
    """The observer's settings, removed from the environment so that tests and their children do not see them."""
    settings = {name: os.environ.pop(name) for name in SETTINGS if name in os.environ}
    original = os.environ.pop("M3_TEST_PYTHONPATH", None)
    if original is not None:
        if original:
            os.environ["PYTHONPATH"] = original
        else:
            os.environ.pop("PYTHONPATH", None)
    return settings


class Recorder:
    """Writes events to the record file and, if asked, traces which functions each test executes."""

    def __init__(self, settings: dict[str, str]):
        self.settings = settings
        self.root = os.path.realpath(settings["M3_TEST_ROOT"])
        self._file = os.open(settings["M3_TEST_RECORD"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._names: dict[str, str | None] = {}
        self.tracer = Tracer(self) if settings.get("M3_TEST_TRACE") == "1" else None
        self.stops = settings.get("M3_TEST_STOP") == "1"
        self._only: list[str] | None = None
        if "M3_TEST_ONLY" in settings:
            with open(settings["M3_TEST_ONLY"], encoding="utf-8") as file:
                self._only = json.load(file)
        self._folders = [f for f in settings.get("M3_TEST_FOLDERS", "").split(os.pathsep) if f]
        self._folder = self.root
        self._pid = os.getpid()
        self.current = ""
        self.failed: set[str] = set()

    def wanted(self, test_id: str) -> bool:
        """Whether the test, its class, file or folder was asked for; if nothing was, all are."""
        return self._only is None or any(
            test_id == chosen or test_id.startswith((chosen + "::", chosen + "[", chosen.rstrip("/") + "/"))
            for chosen in self._only
        )

    def enter_folder_of(self, path: str) -> None:
        """Go to the project of a repository with several that holds the file: its tests expect to run there."""
        folder = next((f for f in self._folders if path.startswith(f + os.sep)), self.root)
        if folder != self._folder:
            os.chdir(folder)
            self._folder = folder

    def write(self, event: str, **fields: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, **fields}) + "\n").encode("utf-8", "backslashreplace"))

    def name_inside(self, filename: str) -> str | None:
        """The file relative to the root if it is the repository's own code, else None."""
        if filename not in self._names:
            # Names like <string> or <frozen runpy> are no files, wherever the working directory is.
            real = "" if filename.startswith("<") else os.path.realpath(filename)
            name = (
                os.path.relpath(real, self.root).replace(os.sep, "/") if real.startswith(self.root + os.sep) else None
            )
            self._names[filename] = None if name is None or _NOT_OURS.intersection(name.split("/")) else name
        return self._names[filename]

    def frames(self, traceback: types.TracebackType | None) -> list[tuple[str, int, str]]:
        """(file, line, function) of the frames inside the root, innermost last."""
        found = []
        while traceback is not None:
            name = self.name_inside(traceback.tb_frame.f_code.co_filename)
            if name is not None:
                found.append((name, traceback.tb_lineno, traceback.tb_frame.f_code.co_name))
            traceback = traceback.tb_next
        return found

    @contextlib.contextmanager
    def test(self, test_id: str) -> Iterator[None]:
        """Around one test: names it in case the run is killed, and traces it."""
        self.current = test_id
        if self.tracer is not None:
            self.tracer.start()
        try:
            yield
        finally:
            if self.tracer is not None:
                self.tracer.stop(test_id, test_id in self.failed)
            self.current = ""

    def watch_deadline(self) -> None:
        """When the observer ends the run (SIGTERM at its deadline), record where the main thread is, then end."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._record_hang)

    def _record_hang(self, number: int, frame: types.FrameType | None) -> None:
        found = []
        while frame is not None:
            name = self.name_inside(frame.f_code.co_filename)
            if name is not None:
                found.append((name, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        if os.getpid() == self._pid:  # not in a child that a test forked
            self.write("hang", id=self.current, frames=found[::-1])
            if self.current and self.tracer is not None:
                self.tracer.report(self.current)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def finish(self, exit_code: int) -> None:
        if self.tracer is not None:
            self.tracer.report_passing()
        self.write("finish", exit_code=exit_code)


class Tracer:
    """Which of the root's functions and lines run during one test, by sys.settrace.

    Not covered: other processes, and tests during which something else (a debugger, coverage) traces.
    """

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._lines: dict[types.CodeType, set[int]] = {}
        self._all_lines: dict[types.CodeType, int | None] = {}
        self._passing: dict[tuple[str, int], int] = {}
        self._num_failures = 0
        self._active = False

    def start(self) -> None:
        self._lines = {}
        self._active = sys.gettrace() is None
        if self._active:
            threading.settrace(self._call)
            sys.settrace(self._call)

    def stop(self, test_id: str, failed: bool) -> None:
        if not self._active:
            return
        if sys.gettrace() == self._call:
            sys.settrace(None)
        threading.settrace(None)
        if failed:
            self.report(test_id)
            return
        for code in self._lines:
            name = self._recorder.name_inside(code.co_filename)
            if name is not None:
                key = (name, code.co_firstlineno)
                self._passing[key] = self._passing.get(key, 0) + 1

    def report(self, test_id: str) -> None:
        self._num_failures += 1
        if self._num_failures <= MAX_TRACED_FAILURES:
            functions = [
                (self._recorder.name_inside(code.co_filename), code.co_firstlineno, sorted(lines))
                for code, lines in list(self._lines.items())
            ]
            self._recorder.write("trace", id=test_id, functions=functions)

    def report_passing(self) -> None:
        self._recorder.write("passing", functions=[(name, line, n) for (name, line), n in self._passing.items()])

    def _call(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in self._all_lines:
            ours = code.co_flags & _FUNCTION_CODE and self._recorder.name_inside(code.co_filename) is not None
            self._all_lines[code] = _num_lines(code) if ours else None
        total = self._all_lines[code]
        if total is None:
            return None
        seen = self._lines.setdefault(code, set())
        return None if len(seen) >= total else self._line

    def _line(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._lines.setdefault(frame.f_code, set()).add(frame.f_lineno)
        return self._line


def _num_lines(code: types.CodeType) -> int:
    import dis

    return len({line for _, line in dis.findlinestarts(code) if line is not None} - {code.co_firstlineno})
