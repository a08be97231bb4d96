"""What stands in the pictures: tracebacks, source code, labels of forms and dialogs; all made of short lists."""

from __future__ import annotations

import dataclasses
import random

_NOUNS = """
account address amount archive basket batch block board booking branch bucket budget cache calendar cart chart
client column config contact cursor customer device disk document draft driver entry event export field file folder
form frame group header index invoice item job journal label ledger level line list lock log map matrix member
message meter model node note offer order page parcel parser path payment period plan player point policy price
profile query queue range rate record region report request result role room route row rule sample schema score
section server session sheet shelf signal site slot source stage state step stock store stream table tag task team
ticket timer token track tree unit user value vector vendor version view voucher window worker zone
"""
NOUNS = tuple(_NOUNS.split())
_VERBS = """
add apply build check clear close collect compute convert copy count create decode delete drop encode expand fetch
fill filter find flush format get group handle insert join load make mark match merge move open parse pick print
process push read refresh remove render replace reset resolve run save scan send set shift show sort split start
stop store sum sync trim update validate wrap write
"""
VERBS = tuple(_VERBS.split())
ERRORS = {
    "KeyError": ("'{noun}'", "'{noun}_{other}'"),
    "ValueError": ("invalid literal for int() with base 10: '{noun}'", "{noun} must be at least {n}", "empty {noun}"),
    "TypeError": ("unsupported operand type(s) for +: 'int' and 'str'", "{verb}() takes {n} positional arguments"),
    "IndexError": ("list index out of range", "{noun} {n} is not there"),
    "AttributeError": ("'NoneType' object has no attribute '{noun}'", "'list' object has no attribute '{verb}'"),
    "AssertionError": ("assert {n} == {m}", "{noun} is wrong"),
    "ZeroDivisionError": ("division by zero",),
    "FileNotFoundError": ("[Errno 2] No such file or directory: '{noun}.json'",),
    "NameError": ("name '{noun}' is not defined",),
    "ImportError": ("cannot import name '{verb}_{noun}' from '{other}'",),
    "ModuleNotFoundError": ("No module named '{noun}_{other}'",),
    "RuntimeError": ("{noun} is closed", "cannot {verb} the {noun} twice"),
    "UnicodeDecodeError": ("'utf-8' codec can't decode byte 0xff in position {n}",),
    "RecursionError": ("maximum recursion depth exceeded",),
    "PermissionError": ("[Errno 13] Permission denied: '/srv/{noun}'",),
    "TimeoutError": ("no answer after {n} s",),
    "NotImplementedError": ("{verb}_{noun}",),
    "OverflowError": ("{noun} too large to convert",),
}
BUTTONS = (
    "OK", "Cancel", "Save", "Delete", "Close", "Retry", "Apply", "Discard", "Send", "Next", "Back", "Continue",
    "Sign in", "Log out", "Try again",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Traceback:
    """The lines as a terminal shows them; the error is on the last one, raised at `place`."""

    lines: tuple[str, ...]
    exception: str
    place: str
    """`file:line` of the innermost frame."""


def traceback(rng: random.Random) -> Traceback:
    exception, message = error(rng)
    frames = [(module(rng), rng.randint(1, 999)) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.3:
        return _of_pytest(rng, exception, message, frames[-1])
    lines = ["Traceback (most recent call last):"]
    for number, (file, line) in enumerate(frames):
        where = "<module>" if not number else name(rng)
        lines += [f'  File "{file}", line {line}, in {where}', f"    {statement(rng)}"]
    lines.append(f"{exception}: {message}")
    return Traceback(tuple(lines), exception, f"{frames[-1][0]}:{frames[-1][1]}")


def _of_pytest(rng: random.Random, exception: str, message: str, frame: tuple[str, int]) -> Traceback:
    test, (file, line) = f"test_{name(rng)}", frame
    lines = (
        f"_____ {test} _____", "", f"    def {test}():", f">       {statement(rng)}", f"E       {exception}: {message}",
        "", f"{file}:{line}: {exception}",
    )  # fmt: skip
    return Traceback(lines, exception, f"{file}:{line}")


def error(rng: random.Random) -> tuple[str, str]:
    exception = rng.choice(list(ERRORS))
    words = {"noun": rng.choice(NOUNS), "other": rng.choice(NOUNS), "verb": rng.choice(VERBS)}
    message = rng.choice(ERRORS[exception]).format(**words, n=rng.randint(2, 99), m=rng.randint(2, 99))
    if rng.random() < 0.15:
        exception = f"{rng.choice(NOUNS).title()}{rng.choice(['Error', 'Missing', 'Failed'])}"
    return exception, message


def module(rng: random.Random) -> str:
    parts = [rng.choice(NOUNS) for _ in range(rng.randint(0, 2))]
    return "/".join([*parts, f"{rng.choice([rng.choice(NOUNS), name(rng)])}.py"])


def name(rng: random.Random) -> str:
    return f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}"


def statement(rng: random.Random) -> str:
    one, other = rng.choice(NOUNS), rng.choice(NOUNS)
    return rng.choice(
        [
            f"return {one}[{other!r}]",
            f"{one} = {name(rng)}({other})",
            f"if {one} {rng.choice(['<', '<=', '==', '!=', '>', '>='])} {rng.randint(0, 99)}:",
            f"self.{one}.{rng.choice(VERBS)}({other}, {rng.randint(0, 9)})",
            f"{one} += {other} * {rng.randint(2, 60)}",
            f"raise {rng.choice(list(ERRORS))}({one})",
            f"for {one} in {other}s:",
            f"assert {name(rng)}({rng.randint(0, 99)}) == {rng.randint(0, 99)}",
        ]
    )


def code(rng: random.Random, count: int) -> list[str]:
    """So many lines that look like Python."""
    lines = [f"def {name(rng)}({rng.choice(NOUNS)}):"]
    while len(lines) < count:
        if rng.random() < 0.12:
            lines += ["", f"def {name(rng)}({rng.choice(NOUNS)}, {rng.choice(NOUNS)}=None):"]
        lines.append("    " * rng.choice([1, 1, 1, 2]) + statement(rng))
    return lines[:count]


def label(rng: random.Random) -> str:
    one, other = rng.choice(NOUNS), rng.choice(NOUNS)
    words = rng.choice([one, f"{one} {other}", f"{rng.choice(VERBS)} {one}"])
    return rng.choice([words.capitalize(), words.title()])


def button(rng: random.Random) -> str:
    return rng.choice(BUTTONS) if rng.random() < 0.5 else label(rng)


def sentence(rng: random.Random) -> str:
    return rng.choice(
        [
            f"The {rng.choice(NOUNS)} could not be {rng.choice(['saved', 'found', 'read', 'sent'])}.",
            f"Delete {rng.randint(2, 99)} {rng.choice(NOUNS)}s?",
            f"This {rng.choice(NOUNS)} has changes that are not saved.",
            f"Error {rng.randint(100, 599)}: {rng.choice(NOUNS)} {rng.choice(['missing', 'too large', 'closed'])}",
        ]
    )
