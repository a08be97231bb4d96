"""Plain requests: run the tests, show a file, find a name. One to three of them make a conversation."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from training import wording
from training.corpus import Module
from training.transcript import NO_LOSS, Encoder, Transcript
from training.units import Unit

MAX_SHOWN_LINES = 60
MAX_ROWS = 8

_TESTS = [
    "run the tests", "Run the test suite", "please run all tests", "do the tests pass?", "test it", "run pytest",
    "are the tests green?", "check the tests", "which tests fail?", "can you run the tests", "execute the tests please",
    "what is failing?", "try the tests again", "rerun the tests", "make sure the tests pass",
]  # fmt: skip
_SHOW = [
    "show {p}", "show me {p}", "open {p}", "read {p}", "print {p}", "let me see {p}", "what is in {p}?", "cat {p}",
    "display the file {p}", "can you show {p}", "look at {p}", "give me the content of {p}", "view {p}",
]  # fmt: skip
_SYMBOL = [
    "show {f} in {p}", "read {f} from {p}", "open the function {f} of {p}", "let me see {f} ({p})",
    "show me {f} in {p}", "what does {f} in {p} look like?", "print {f} of {p}",
]  # fmt: skip
_DEFINED = [
    "where is {f} defined?", "find {f}", "where is {f}?", "find the definition of {f}", "which file defines {f}",
    "search for {f}", "grep {f}", "look for {f}", "where do we define {f}", "locate {f}", "in which file is {f}",
]  # fmt: skip
_USED = [
    "where is {f} used?", "who calls {f}?", "find the uses of {f}", "which code calls {f}", "find all calls of {f}",
]  # fmt: skip
_TALK = [
    ("hello", "Hello. I can run the tests, show code, find names and repair small bugs."),
    ("hi", "Hello. I can run the tests, show code, find names and repair small bugs."),
    ("what can you do?", "I can run the tests, show code, find names and repair small bugs."),
    ("help", "Ask me to run the tests, to show a file, to find a name, or to repair a small bug."),
    ("who are you?", "I am nano, the small model that comes with m3. I repair small bugs in Python."),
    ("thanks", "You are welcome."), ("thank you", "You are welcome."), ("ok", "Good."),
]  # fmt: skip


def plain_requests(
    encoder: Encoder,
    rng: random.Random,
    system: str,
    tools: Sequence[tuple[str, Sequence[str]]],
    module: Module,
    unit: Unit,
    path: str,
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Requests in many wordings about a true module: each with the call, its result and a closing sentence."""
    transcript = Transcript(encoder)
    transcript.developer(system, tools)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        rng.choice([_run_tests, _run_tests, _show, _show, _find, _find, _talk])(transcript, rng, module, unit, path)
    return transcript.arrays()


def _ask(transcript: Transcript, rng: random.Random, text: str) -> None:
    transcript.user(text[:1].upper() + text[1:] if rng.random() < 0.3 else text)


def _talk(transcript: Transcript, rng: random.Random, module: Module, unit: Unit, path: str) -> None:
    said, answer = rng.choice(_TALK)
    _ask(transcript, rng, said)
    transcript.say(answer)


def _run_tests(transcript: Transcript, rng: random.Random, module: Module, unit: Unit, path: str) -> None:
    _ask(transcript, rng, rng.choice(_TESTS))
    transcript.call("test", {})
    passed, failed = rng.randrange(1, 60), rng.choice([0, 0, 1, 1, 2])
    if not failed:
        transcript.result(f"{passed} passed")
        transcript.say(f"All {passed} tests pass.")
        return
    names = [f.rsplit(".", 1)[-1].strip("_").lower() for f in module.functions] or ["main"]
    stem = path.rsplit("/", 1)[-1].removesuffix(".py").strip("_") or "module"
    tests = [f"tests/test_{stem}.py::test_{name}" for name in rng.sample(names, min(failed, len(names)))]
    lines = [f"{passed} passed, {len(tests)} failed"]
    for test in tests:
        lines += [f"FAILED {test}", f"{test.split('::')[0]}:{rng.randrange(5, 300)} in {test.split('::')[1]}"]
        lines += wording.error_lines(rng, wording.error_name(rng, "variable"), names[0], [unit.name or "value"])
    transcript.result("\n".join(lines))
    verb = "test fails" if len(tests) == 1 else "tests fail"
    transcript.say(f"{len(tests)} {verb}: {', '.join(tests)}")


def _show(transcript: Transcript, rng: random.Random, module: Module, unit: Unit, path: str) -> None:
    total = module.text.count("\n") + (not module.text.endswith("\n"))
    if total <= MAX_SHOWN_LINES and (not unit.name or rng.random() < 0.7):
        _ask(transcript, rng, rng.choice(_SHOW).format(p=path))
        transcript.call("read", {"path": path})
        _lines(transcript, module, path, range(total))
        transcript.say(f"This is {path}.")
        return
    if module.functions.count(unit.name) == 1 and unit.last - unit.first < MAX_SHOWN_LINES:
        _ask(transcript, rng, rng.choice(_SYMBOL).format(p=path, f=unit.name))
        transcript.call("read", {"path": path, "symbol": unit.name})
        where = f"{path} (lines {unit.first + 1}-{unit.last + 1} of {total})"
        _lines(transcript, module, where, range(unit.first, unit.last + 1))
        transcript.say(f"This is {unit.name} in {path}.")
        return
    _ask(transcript, rng, rng.choice(_SHOW).format(p=path))
    transcript.call("read", {"path": path})
    shown = min(total, MAX_SHOWN_LINES)
    _lines(transcript, module, f"{path} (lines 1-{shown} of {total})", range(shown))
    transcript.say(f"These are the first {shown} lines of {path}.")


def _lines(transcript: Transcript, module: Module, head: str, numbers: Sequence[int]) -> None:
    transcript.open_result()
    transcript.plain(head)
    lines = module.text.split("\n")
    for i in numbers:
        transcript.code_line(i + 1, lines[i], module.line_ids(i), NO_LOSS)
    transcript.close_result()


def _find(transcript: Transcript, rng: random.Random, module: Module, unit: Unit, path: str) -> None:
    name = (rng.choice(module.functions) if module.functions else "main").rsplit(".", 1)[-1]
    defined = rng.random() < 0.6
    _ask(transcript, rng, rng.choice(_DEFINED if defined else _USED).format(f=name))
    pattern = f"(def|class) {name}\\b" if defined else f"\\b{name}\\("
    transcript.call("grep", {"pattern": pattern})
    rows = [i for i, line in enumerate(module.text.split("\n")) if re.search(pattern, line)][:MAX_ROWS]
    if not rows or rng.random() < 0.1:
        transcript.result(f"No match for {pattern!r} in . (ignored files were not searched).")
        transcript.say(f"I found no {'definition' if defined else 'use'} of {name}.")
        return
    _lines(transcript, module, path, rows)
    numbers = ", ".join(str(i + 1) for i in rows)
    where = f"{path}, line{'s' if len(rows) > 1 else ''} {numbers}"
    transcript.say(f"{name} is {'defined' if defined else 'used'} in {where}.")
