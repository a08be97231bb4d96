"""Which proposals become candidates: those that say something new and can be parsed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from m3agent.fix.candidates import Candidate, CandidateMaker, Proposal
from m3agent.fix.suspects import Suspect
from m3agent.messages import ToolCall

SOURCE = """\
import functools


class Stock:
    level = 3

    @functools.cache
    def low(self, limit):
        # the limit itself counts
        text = '''a
b'''
        return self.level < limit


def other():
    return 1
"""
LOW = Suspect(path="stock.py", symbol="Stock.low", first_line=7, last_line=12, ran_lines=frozenset({12}), score=1.0)


class Edits:
    """Proposals for one function, made one after the other by one maker."""

    def __init__(self, folder: Path, suspect: Suspect = LOW, source: str = SOURCE):
        self.file, self.suspect, self.source = folder / suspect.path, suspect, source
        self.file.write_text(source)
        self.maker = CandidateMaker(folder, folder)

    def make(self, action: str, line: int, text: str = "", path: str = "") -> Candidate | None:
        arguments = {"path": path or self.suspect.path, "action": action, "line": f"L{line}|", "text": text}
        call = ToolCall(id="c", name="edit_line", arguments=arguments)
        made = asyncio.run(self.maker.make(Proposal(suspect=self.suspect, call=call, score=0.0)))
        assert self.file.read_text() == self.source, "the file must be as before"
        return made


@pytest.fixture
def edits(tmp_path: Path) -> Edits:
    return Edits(tmp_path)


def test_a_candidate_holds_the_file_before_and_after(edits: Edits) -> None:
    made = edits.make("replace", 12, "        return self.level <= limit")
    assert made is not None
    assert made.before.decode() == SOURCE
    assert made.after.decode() == SOURCE.replace("<", "<=")
    assert "+        return self.level <= limit" in made.diff


@pytest.mark.parametrize(
    ("action", "line", "text"),
    [
        ("replace", 12, "        return self.level < limit"),
        ("replace", 12, "        return (self.level  <  limit)  # the same"),
        ("delete", 9, ""),
        ("insert", 12, "        # a last word"),
        ("replace", 12, "        return self.level <"),
        ("replace", 12, "      return self.level <= limit"),
        ("replace", 99, "        return 1"),
        ("delete", 8, ""),
    ],
    ids=["equal", "layout", "comment gone", "comment", "torn", "indentation", "no such line", "the head"],
)
def test_what_says_nothing_new_or_does_not_parse_is_none(edits: Edits, action: str, line: int, text: str) -> None:
    assert edits.make(action, line, text) is None


def test_the_same_meaning_twice_is_one_candidate(edits: Edits) -> None:
    assert edits.make("replace", 12, "        return self.level <= limit") is not None
    assert edits.make("replace", 12, "        return self.level <= (limit)") is None
    assert edits.make("replace", 12, "        return self.level > limit") is not None


def test_what_leaves_the_function_is_told_apart(edits: Edits) -> None:
    """Lines at the function's end may come to stand outside of it; they count as well."""
    one, two = (edits.make("insert", 12, f"    level = {n}") for n in (4, 5))
    assert one is not None
    assert two is not None
    assert edits.make("insert", 12, "    level  =  5") is None


def test_another_file_is_none(edits: Edits, tmp_path: Path) -> None:
    (tmp_path / "else.py").write_text("x = 1\n")
    assert edits.make("replace", 1, "x = 2", path="else.py") is None


def test_a_language_without_a_parser_is_compared_as_text(tmp_path: Path) -> None:
    suspect = Suspect(path="a.js", symbol="f", first_line=1, last_line=3, ran_lines=frozenset(), score=1.0)
    edits = Edits(tmp_path, suspect, "function f() {\n  return 1\n}\n")
    assert edits.make("replace", 2, "  return 2") is not None
    assert edits.make("replace", 2, "  return 2") is None


def test_a_candidate_of_a_long_file_takes_no_longer_than_the_edit(tmp_path: Path) -> None:
    """Comparing whole files would take seconds here, for every candidate."""
    filler = "\n\n".join(f"def f{i}(a, b):\n    return [a + {i}, b * a, (a, b)]" for i in range(1000))
    edits = Edits(tmp_path, source=f"{SOURCE}\n\n{filler}\n")
    start = time.process_time()
    made = [edits.make("replace", 12, f"        return self.level < limit + {i}") for i in range(5)]
    assert all(made)
    assert time.process_time() - start < 5 * 0.6
