"""Plain requests: run the tests, show a file, find a name. One to three of them make a conversation."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from training import phrases, wording
from training.corpus import Module
from training.transcript import NO_LOSS, Encoder, Transcript
from training.units import Unit

MAX_SHOWN_LINES = 60
MAX_ROWS = 8


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
        rng.choice(_KINDS)(transcript, rng, module, unit, path)
    return transcript.arrays()


def _talk(transcript: Transcript, rng: random.Random, module: Module, unit: Unit, path: str) -> None:
    said, answer = rng.choice(phrases.TALK)
    transcript.user(phrases.varied(rng, rng.choice(said)))
    transcript.say(answer)


def _cannot(transcript: Transcript, rng: random.Random, module: Module, unit: Unit, path: str) -> None:
    """What nano has no tool or no mind for gets an honest sentence."""
    said, answer = rng.choice(phrases.CANNOT)
    text = rng.choice(said).format(p=path, f=_short_name(rng, module))
    transcript.user(phrases.varied(rng, text))
    transcript.say(answer)


def _sound(transcript: Transcript, rng: random.Random, module: Module, unit: Unit, path: str) -> None:
    """An issue about code whose tests all pass: nothing is edited."""
    names = [unit.name] if unit.name else []
    transcript.user(wording.issue(rng, names, path, wording.error_name(rng, "variable")))
    transcript.call("test", {})
    passed = rng.randrange(2, 200)
    transcript.result(f"{passed} passed")
    transcript.say(rng.choice(phrases.SOUND).format(n=passed))


def _short_name(rng: random.Random, module: Module) -> str:
    return (rng.choice(module.functions) if module.functions else "main").rsplit(".", 1)[-1]


def _run_tests(transcript: Transcript, rng: random.Random, module: Module, unit: Unit, path: str) -> None:
    transcript.user(phrases.worded(rng, phrases.TESTS, phrases.TESTS_ASKED))
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
        transcript.user(phrases.worded(rng, phrases.SHOW, phrases.SHOW_ASKED, p=path))
        transcript.call("read", {"path": path})
        _lines(transcript, module, path, range(total))
        transcript.say(f"This is {path}.")
        return
    if module.functions.count(unit.name) == 1 and unit.last - unit.first < MAX_SHOWN_LINES:
        transcript.user(phrases.worded(rng, phrases.SYMBOL, phrases.SYMBOL_ASKED, p=path, f=unit.name))
        transcript.call("read", {"path": path, "symbol": unit.name})
        where = f"{path} (lines {unit.first + 1}-{unit.last + 1} of {total})"
        _lines(transcript, module, where, range(unit.first, unit.last + 1))
        transcript.say(f"This is {unit.name} in {path}.")
        return
    transcript.user(phrases.worded(rng, phrases.SHOW, phrases.SHOW_ASKED, p=path))
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
    name = _short_name(rng, module)
    defined = rng.random() < 0.6
    orders, questions = (phrases.DEFINED, phrases.DEFINED_ASKED) if defined else (phrases.USED, phrases.USED_ASKED)
    transcript.user(phrases.worded(rng, orders, questions, f=name))
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


_KINDS = (_run_tests, _run_tests, _show, _show, _show, _find, _find, _find, _talk, _cannot, _cannot, _sound)
