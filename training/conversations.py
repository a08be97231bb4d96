"""Training examples: a damaged unit and its repair, as the tool conversation that `m3 fix` has with the model.

The full form is the whole conversation, from the issue to the closing sentence; the short form starts at the code and
ends with the edit, which is where the hard decisions are. The texts are those of the tools and of `m3agent.fix`; what
no tool ran (issues, test reports) is made up from true names of the module by `training.wording`.
"""

from __future__ import annotations

import dataclasses
import keyword
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from training import wording
from training.bugs import Bug, inject
from training.corpus import Corpus, Module
from training.executed import Executed
from training.issues import executed_issue
from training.requests import plain_requests
from training.transcript import CODE, NO_LOSS, Encoder, Transcript
from training.units import Unit

SYSTEM = "You repair small bugs in Python: run the tests, read the suspect code, change one line, run the tests again."
TOOLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("read", ("path", "symbol", "start", "end", "column")),
    ("grep", ("pattern", "path", "glob", "ignore_case", "literal", "context", "include_ignored")),
    ("edit_line", ("path", "action", "line", "text")),
    ("test", ("tests",)),
)

STILL_FAILING = 0.1
"""Share of the repairs after which some test fails for another reason, so that the closing sentence depends on the
report."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What the examples are like; shares are probabilities."""

    max_tokens: int = 1536
    full_form: float = 0.25
    two_edits: float = 0.1
    drop_docstring: float = 0.48
    plain_requests: float = 0.08
    executed: float = 0.15
    """Share of bugs that were executed, where such are given; always in the full form."""
    shifted_labels: float = 0.3
    """Units whose line numbers are drawn anew from 1 to 999, so that every label is learnt; the others keep their
    own."""
    bugs_per_visit: int = 2
    mix: Mapping[str, float] | None = None


@dataclasses.dataclass(frozen=True)
class Example:
    """A document: ids, and for each its class of loss (`training.transcript`)."""

    tokens: NDArray[np.uint16]
    classes: NDArray[np.uint8]


@dataclasses.dataclass(frozen=True)
class Shown:
    """A unit as it will be shown: its lines with ids where known, the label of its first line, and the file's
    length."""

    module: Module
    unit: Unit
    path: str
    lines: list[str]
    ids: list[list[int] | None]
    first_label: int
    file_lines: int

    @property
    def source(self) -> str:
        return "\n".join(self.lines)


@dataclasses.dataclass(frozen=True)
class Told:
    """What the prompt says of an executed bug: the issue, the true report, and the number of tests."""

    issue: str
    report: str
    total: int


def examples(
    corpus: Corpus, *, seed: int, settings: DataSettings | None = None, executed: Sequence[Executed] = ()
) -> Iterator[Example]:
    """Examples without end, the same for the same seed; `executed` are mixed in."""
    chosen = settings or DataSettings()
    rng = random.Random(seed)
    encoder = Encoder()
    while True:
        if executed and rng.random() < chosen.executed:
            tokens, classes = executed_conversation(encoder, rng, rng.choice(executed)).arrays()
            if len(tokens) <= chosen.max_tokens:
                yield Example(tokens, classes)
            continue
        unit = corpus.draw(rng)
        module = corpus.modules[unit.module]
        if rng.random() < chosen.plain_requests / chosen.bugs_per_visit:
            asked = plain_requests(encoder, rng, SYSTEM, TOOLS, module, unit, shown_path(module.path))
            if len(asked[0]) <= chosen.max_tokens:
                yield Example(*asked)
            continue
        shown = show(module, unit, rng, chosen)
        for _ in range(chosen.bugs_per_visit):
            try:
                bug = inject(shown.source, rng, chosen.mix, two_edits=chosen.two_edits)
            except (SyntaxError, ValueError, RecursionError):
                break
            if bug is None:
                break
            full = rng.random() < chosen.full_form
            near = neighbours(corpus, unit.module)
            tokens, classes = conversation(encoder, rng, shown, bug, full=full, neighbours=near).arrays()
            if full and len(tokens) > chosen.max_tokens:
                tokens, classes = conversation(encoder, rng, shown, bug, full=False).arrays()
            if len(tokens) <= chosen.max_tokens:
                yield Example(tokens, classes)


def executed_conversation(encoder: Encoder, rng: random.Random, executed: Executed) -> Transcript:
    """The whole conversation about an executed bug; the issue is worded anew each time."""
    no_ids, no_lines = np.zeros(0, np.uint16), np.zeros(1, np.int32)
    module = Module(executed.package, executed.path, "", no_ids, no_lines, list(executed.functions))
    lines = executed.source.split("\n")
    last = executed.first_line - 1 + len(lines) - 1
    unit = Unit(0, executed.first_line - 1, last, executed.name, None, 1.0, b"")
    shown = Shown(module, unit, executed.path, lines, [None] * len(lines), executed.first_line, executed.file_lines)
    message = next((line for line in executed.report.split("\n") if line.startswith(executed.error)), "")
    issue = executed_issue(rng, executed.name, executed.path, executed.examples, executed.error, message)
    told = Told(issue, executed.report, executed.total)
    return conversation(encoder, rng, shown, executed.bug, full=True, told=told)


def neighbours(corpus: Corpus, index: int) -> list[Module]:
    """Modules of the same package that were read just before and after this one."""
    around = corpus.modules[max(0, index - 3) : index] + corpus.modules[index + 1 : index + 4]
    return [m for m in around if m.package == corpus.modules[index].package and m.functions]


def show(module: Module, unit: Unit, rng: random.Random, settings: DataSettings) -> Shown:
    """Draw how a unit is shown: with or without its docstring, at its own or at other line numbers."""
    all_lines = module.text.split("\n")
    lines: list[str] = all_lines[unit.first : unit.last + 1]
    ids: list[list[int] | None] = [module.line_ids(i) for i in range(unit.first, unit.last + 1)]
    if unit.docstring is not None:
        start, end = unit.docstring[0] - unit.first, unit.docstring[1] - unit.first + 1
        if rng.random() < settings.drop_docstring:
            del lines[start:end], ids[start:end]
        elif end - start > 12:
            lines[start:end], ids[start:end] = _first_paragraph(lines[start:end]), [None, None]
    first, file_lines = unit.first + 1, len(all_lines)
    if rng.random() < settings.shifted_labels or (first > 999 and rng.random() < 0.6):
        first = rng.randrange(1, max(2, 999 - len(lines)))
        file_lines = first + len(lines) + rng.randrange(400)
    return Shown(module, unit, shown_path(module.path), lines, ids, first, file_lines)


def _first_paragraph(docstring: Sequence[str]) -> list[str]:
    """A long docstring as two lines: its beginning and its closing quotes."""
    head = docstring[0] if docstring[0].strip(" \"'rRuUbB") else docstring[0].rstrip() + docstring[1].strip()
    quotes = "'''" if "'''" in head else '"""'
    return [head.rstrip("\\ "), head[: len(head) - len(head.lstrip())] + quotes]


def shown_path(path: str) -> str:
    """A module's path as a repository would show it: at most its last three parts."""
    return "/".join(PurePosixPath(path).parts[-3:])


def conversation(
    encoder: Encoder,
    rng: random.Random,
    shown: Shown,
    bug: Bug,
    *,
    full: bool,
    neighbours: Sequence[Module] = (),
    told: Told | None = None,
) -> Transcript:
    """The conversation that repairs `bug`, in the full or in the short form; what is not `told` is made up."""
    transcript = Transcript(encoder)
    name = shown.unit.name
    counts = rng.choice([0, 1, 2, 3, 5, 8, rng.randrange(60)]), rng.choice([1, 1, 1, 2, 3])
    if full:
        error = wording.error_name(rng, bug.kind)
        transcript.developer(SYSTEM, TOOLS)
        transcript.user(told.issue if told else _issue(rng, shown, error))
        transcript.call("test", {})
        transcript.result(told.report if told else failing_report(rng, shown, bug, error, *counts, neighbours))
        last = shown.first_label + len(bug.source.split("\n")) - 1
        where = {"symbol": name} if name else {"start": str(shown.first_label), "end": str(last)}
        transcript.call("read", {"path": shown.path, **where})
    read_result(transcript, shown, bug)
    repair = bug.repair
    label = f"L{shown.first_label + repair.line - 1}|"
    transcript.call("edit_line", {"path": shown.path, "action": repair.action, "line": label, "text": repair.text})
    if full:
        moved = -1 if repair.action == "delete" else repair.text.count("\n") + (repair.action == "insert")
        done = {"replace": "replaced ", "delete": "deleted ", "insert": "inserted after "}[repair.action]
        transcript.result(f"{shown.path}: {done}{label}" + (f"; lines below moved by {moved:+d}" if moved else ""))
        transcript.call("test", {})
        solved = told is not None or rng.random() > STILL_FAILING
        total = told.total if told else counts[0] + counts[1]
        transcript.result(f"{total} passed" if solved else failing_report(rng, shown, bug, error, *counts, neighbours))
        sentence = rng.choice(wording.SENTENCES if solved else wording.STILL_FAILING)
        transcript.say(sentence.format(f=name or "the code", p=shown.path, n=label[1:-1]))
    return transcript


def _issue(rng: random.Random, shown: Shown, error: str) -> str:
    names = [shown.unit.name] if shown.unit.name else []
    others = rng.sample(shown.module.functions, min(1, len(shown.module.functions)))
    return wording.issue(rng, names + others, shown.path, error)


def read_result(transcript: Transcript, shown: Shown, bug: Bug) -> None:
    """The result of `read`: the path, then the lines with their labels; the damaged line has no loss."""
    added = list(bug.added)
    lines: list[tuple[str, list[int] | None, int]] = [
        *((t, i, CODE) for t, i in zip(shown.lines[: bug.first], shown.ids[: bug.first], strict=True)),
        *((text, None, NO_LOSS) for text in added),
        *(
            (t, i, CODE)
            for t, i in zip(shown.lines[bug.first + bug.removed :], shown.ids[bug.first + bug.removed :], strict=True)
        ),
    ]
    last = shown.first_label + len(lines) - 1
    total = max(shown.file_lines + len(added) - bug.removed, last)
    partial = shown.first_label > 1 or last < total
    transcript.open_result()
    transcript.plain(shown.path + (f" (lines {shown.first_label}-{last} of {total})" if partial else ""))
    for number, (text, ids, kind) in enumerate(lines, shown.first_label):
        transcript.code_line(number, text, ids, kind)
    transcript.close_result()


def failing_report(
    rng: random.Random, shown: Shown, bug: Bug, error: str, passed: int, failed: int, neighbours: Sequence[Module] = ()
) -> str:
    """A plausible report of the failing tests: ids, frames through true functions, the error, and what ran.

    `neighbours` are other modules of the package, some of which ran as well.
    """
    name = shown.unit.name or (shown.module.functions[0] if shown.module.functions else "main")
    short = name.rsplit(".", 1)[-1].strip("_") or "call"
    stem = PurePosixPath(shown.path).stem.strip("_") or "module"
    file = rng.choice(
        [
            f"tests/test_{stem}.py",
            f"tests/test_{stem}.py",
            f"test_{stem}.py",
            "tests/test_all.py",
            f"tests/unit/test_{stem}.py",
        ]
    )
    lines = [", ".join([f"{passed} passed"] * bool(passed) + [f"{failed} failed"])]
    others = [f for f in shown.module.functions if f != name]
    damaged = shown.first_label + bug.first
    near = bug.source.split("\n")[max(0, bug.first - 1) : bug.first + 2]
    words = re.findall(r"[A-Za-z_]\w{2,}", " ".join(near))
    identifiers = [word for word in words if not keyword.iskeyword(word)] or [short]
    for _ in range(min(failed, 3)):
        topic = short if rng.random() < 0.6 or not others else rng.choice(others).rsplit(".", 1)[-1].strip("_")
        test = (
            "test_"
            + topic.lower()
            + rng.choice(["", "", "_" + rng.choice(_CASES), "_" + rng.choice(_CASES), f"[{rng.randrange(6)}]"])
        )
        owner = rng.choice(["", "", f"Test{stem.title().replace('_', '')}::"])
        lines += [
            f"FAILED {file}::{owner}{test}",
            f"{file}:{rng.randrange(5, 300)} in {owner.replace('::', '.')}{test.split('[')[0]}",
        ]
        if error or rng.random() < 0.1:
            if others and rng.random() < 0.3:
                lines.append(f"{shown.path}:{rng.randrange(1, shown.file_lines + 1)} in {rng.choice(others)}")
            end = shown.first_label + len(bug.source.split("\n")) - 1
            at = damaged if rng.random() < 0.7 else rng.randrange(damaged, max(damaged + 1, end + 1))
            lines.append(f"{shown.path}:{at} in {name}")
            if others and rng.random() < 0.12:
                lines.append(f"{shown.path}:{rng.randrange(1, shown.file_lines + 1)} in {rng.choice(others)}")
        lines += wording.error_lines(rng, error, name, identifiers)
    if rng.random() < 0.85:
        run = rng.sample(others, min(len(others), rng.choice([0, 1, 2, 4, 7, 11])))
        # Most specific first: the damaged function tends to stand near the front.
        run.insert(min(len(run), int(rng.expovariate(0.5))), name)
        ran = [f"ran {shown.path}: {', '.join(run)}"]
        for other in rng.sample(neighbours, min(len(neighbours), rng.choice([0, 0, 1, 1, 2, 3]))):
            names = rng.sample(other.functions, min(len(other.functions), rng.choice([1, 2, 3, 6, 12])))
            ran.insert(0 if rng.random() < 0.3 else len(ran), f"ran {shown_path(other.path)}: {', '.join(names)}")
        lines += ran
    return "\n".join(lines)


_CASES_TEXT = """
empty one_item many_items at_the_limit default_value keeps_order twice with_names raises none simple nested
basic
"""
_CASES = _CASES_TEXT.split()
