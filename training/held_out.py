"""The fixed set on which a training run is judged: bugs in functions of packages that training never reads."""

from __future__ import annotations

import ast
import dataclasses
import random
import re
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from training.bugs import Action, Repair, inject, repaired
from training.conversations import DataSettings, conversation, neighbours, show
from training.corpus import Corpus, build_corpus
from training.quality import is_test_path
from training.transcript import NS, Encoder

CLOSED = f"{NS}</text>"


@dataclasses.dataclass(frozen=True)
class Case:
    """A bug to repair. `prompt` ends where the value of `action` begins, `target` goes to the end of `text`.

    `original` and `buggy` are the unit's text; its first line has the label L{first_label}|.
    """

    prompt: NDArray[np.uint16]
    target: NDArray[np.uint16]
    original: str
    buggy: str
    first_label: int
    repair: Repair
    kind: str
    package: str


def held_out_set(*, count: int = 2400, seed: int = 7, processes: int, full_form: bool = True) -> list[Case]:
    """`count` cases from the held-out packages that are installed, the same for the same packages and seed.

    With `full_form` the prompt is the whole conversation up to the edit, else only the code. Fewer cases come back when
    the packages hold fewer functions.
    """
    corpus = build_corpus(None, processes=processes, held_out=True)
    return cases(corpus, count=count, seed=seed, full_form=full_form)


def cases(corpus: Corpus, *, count: int, seed: int, full_form: bool = True) -> list[Case]:
    encoder = Encoder()
    rng = random.Random(seed)
    settings = DataSettings(shifted_labels=0.0)
    action = encoder.markup(f"{NS}<action>")
    named = [u for u in corpus.units if u.name and not is_test_path(corpus.modules[u.module].path)]
    rng.shuffle(named)
    found: list[Case] = []
    for unit in named:
        if len(found) == count:
            break
        shown = show(corpus.modules[unit.module], unit, rng, settings)
        try:
            bug = inject(shown.source, rng, two_edits=settings.two_edits)
        except (SyntaxError, ValueError, RecursionError):
            continue
        if bug is None:
            continue
        ids, _ = conversation(
            encoder, rng, shown, bug, full=full_form, neighbours=neighbours(corpus, unit.module)
        ).arrays()
        tokens = ids.tolist()
        start = _find(tokens, action) + len(action)
        end = start + _find(tokens[start:], encoder.markup(CLOSED)) + len(encoder.markup(CLOSED))
        if end > settings.max_tokens:
            continue
        package = corpus.modules[unit.module].package
        found.append(
            Case(
                ids[:start], ids[start:end], shown.source, bug.source, shown.first_label, bug.repair, bug.kind, package
            )
        )
    return found


def _find(tokens: Sequence[int], wanted: Sequence[int]) -> int:
    size = len(wanted)
    return next(i for i in range(len(tokens)) if tokens[i : i + size] == wanted)


_COMPLETION = re.compile(
    re.escape(NS) + "|" + re.escape("]~b]") + "|" + re.escape("[e~["),
)


def parse_completion(case: Case, completion: str) -> Repair | None:
    """The edit that a completion (decoded from the value of `action` on) states; None if it is not in form."""
    match = re.match(
        rf"(replace|insert|delete){re.escape(NS)}</action>{re.escape(NS)}<line>L(\d+)\|?{re.escape(NS)}</line>{re.escape(NS)}<text>",
        completion,
    )
    if match is None:
        return None
    text = _COMPLETION.split(completion[match.end() :])[0]
    action: Action = match.group(1)  # type: ignore[assignment]
    line = int(match.group(2)) - case.first_label + 1
    inside = (0 if action == "insert" else 1) <= line <= len(case.buggy.split("\n"))
    return Repair(action, line, text) if inside else None


def is_fixed(case: Case, completion: str) -> bool:
    """Whether the edited unit has the syntax tree of the original: a lower bound of what tests would accept."""
    repair = parse_completion(case, completion)
    return repair is not None and tree(repaired(case.buggy, repair)) == tree(case.original)


def right_line(case: Case, completion: str) -> bool:
    """Whether the completion names the damaged line, whatever it does there."""
    repair = parse_completion(case, completion)
    return repair is not None and repair.line == case.repair.line


def fixed_rank(case: Case, completions: Sequence[str]) -> int | None:
    """The rank (0 is first) of the first right one among ranked completions; None if there is none.

    What no test run would be spent on takes no rank: no edit, no syntax, the tree of the buggy unit or of an earlier
    one.
    """
    seen = {tree(case.buggy)}
    rank = 0
    for completion in completions:
        repair = parse_completion(case, completion)
        made = tree(repaired(case.buggy, repair)) if repair is not None else None
        if made is None or made in seen:
            continue
        if made == tree(case.original):
            return rank
        seen.add(made)
        rank += 1
    return None


def tree(source: str) -> str | None:
    """The dump of a unit's syntax tree; None if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.dump(ast.parse(("class _:\n" if source[:1] in (" ", "\t") else "") + source))
    except (SyntaxError, ValueError, RecursionError):
        return None
