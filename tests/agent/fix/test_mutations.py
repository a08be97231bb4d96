"""Mechanical mutations: they reach the common slips, and each is one small change that `edit_line` can make."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3agent.fix.mutations import MAX_MUTATIONS, Mutation, mutations
from m3agent.fix.suspects import Suspect


def suspect_of(source: str) -> Suspect:
    last = len(source.rstrip("\n").split("\n"))
    return Suspect(path="a.py", symbol="f", first_line=1, last_line=last, ran_lines=frozenset(), score=1.0)


def applied(source: str, mutation: Mutation) -> str:
    lines = source.split("\n")
    lines[mutation.line - 1 : mutation.line] = [] if mutation.text is None else [mutation.text]
    return "\n".join(lines)


SLIPS = [
    ("return a < b", "return a <= b"),
    ("return max(a, b)", "return min(a, b)"),
    ("return a not in b", "return a in b"),
    ("return a and b", "return a or b"),
    ("return a + 1", "return a - 1"),
    ("return a + 1", "return a"),
    ("return a[0]", "return a[1]"),
    ("return a - b", "return a + b"),
    ("return g(a, b)", "return g(b, a)"),
    ("return a.lower()", "return a.upper()"),
    ("return a if b else 0", "return a if not b else 0"),
    ("a += b", "a -= b"),
    ("return range(a)", "return range(a + 1)"),
    ("return 'ä', a < b", "return 'ä', a <= b"),
    ("return (a) < (b)", "return (a) <= (b)"),
    ("return not a", "return a"),
]


@pytest.mark.parametrize(("slip", "repair"), SLIPS)
def test_a_slip_is_undone_by_one_of_them(slip: str, repair: str) -> None:
    source = f"def f(a, b):\n    {slip}\n"
    made = [applied(source, m) for m in mutations(source.encode(), suspect_of(source))]
    assert f"def f(a, b):\n    {repair}\n" in made


def test_only_lines_of_the_suspect_change() -> None:
    source = "x = 1\n\ndef f(a):\n    return a + 1\n\ny = 2\n"
    suspect = Suspect(path="a.py", symbol="f", first_line=3, last_line=4, ran_lines=frozenset(), score=1.0)
    assert {m.line for m in mutations(source.encode(), suspect)} <= {3, 4}


def test_what_is_no_python_has_none() -> None:
    assert mutations(b"def f(:\n", suspect_of("def f(:\n")) == []


def test_the_call_names_the_line_as_read_shows_it() -> None:
    replace, delete = Mutation(4, "    x = 1"), Mutation(4, None)
    assert replace.arguments("a.py") == {"path": "a.py", "action": "replace", "line": "L4|", "text": "    x = 1"}
    assert delete.arguments("a.py") == {"path": "a.py", "action": "delete", "line": "L4|", "text": ""}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.sampled_from([slip for slip, _ in SLIPS]))
def test_there_are_never_more_than_the_bound_and_never_two_alike(repeats: int, slip: str) -> None:
    source = textwrap.dedent("def f(a, b):\n") + f"    {slip}\n" * repeats
    ast.parse(source)
    found = mutations(source.encode(), suspect_of(source))
    assert 0 < len(found) <= MAX_MUTATIONS
    assert len(set(found)) == len(found)
