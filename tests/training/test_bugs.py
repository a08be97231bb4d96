"""Injected bugs: always parseable, one place, and undone exactly by the stated repair."""

from __future__ import annotations

import ast
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.bugs import DEFAULT_MIX, MAKERS, inject, repaired


def _parse(source: str) -> ast.Module:
    return ast.parse(("class _:\n" if source[:1] == " " else "") + source)


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_every_class_finds_places_and_its_repair_gives_the_original_back(
    kind: str, library_functions: list[str]
) -> None:
    rng = random.Random(3)
    made = 0
    for source in library_functions:
        bug = inject(source, rng, {kind: 1.0}, two_edits=0.0)
        if bug is None:
            continue
        made += 1
        _parse(bug.source)
        assert bug.kind == kind
        assert repaired(bug.source, bug.repair) == source
        old, new = source.split("\n"), bug.source.split("\n")
        assert old[: bug.first] == new[: bug.first]
        assert old[bug.first + bug.removed :] == new[bug.first + len(bug.added) :]
        assert len(bug.added) <= 1
        assert ast.dump(_parse(source)) != ast.dump(_parse(bug.source))
    assert made >= 3, f"{kind} found {made} places in {len(library_functions)} functions"


@given(seed=st.integers(0, 2**32), two=st.sampled_from([0.0, 1.0]))
@settings(max_examples=60, deadline=None)
def test_any_bug_of_the_mix_is_one_place_and_is_undone(seed: int, two: float, library_functions: list[str]) -> None:
    rng = random.Random(seed)
    source = rng.choice(library_functions)
    bug = inject(source, rng, two_edits=two)
    if bug is not None:
        _parse(bug.source)
        assert repaired(bug.source, bug.repair) == source
        assert ast.dump(_parse(bug.source)) != ast.dump(_parse(source))


def test_the_same_seed_makes_the_same_bug(library_functions: list[str]) -> None:
    for source in library_functions[:20]:
        assert inject(source, random.Random(5)) == inject(source, random.Random(5))


def test_text_that_is_not_ascii_keeps_its_characters() -> None:
    source = 'def f(name):\n    grüße = "Grüß Gott, " + name\n    länge = len(grüße) + 1\n    return grüße, länge'
    kinds = set()
    for seed in range(200):
        bug = inject(source, random.Random(seed))
        if bug is not None:
            kinds.add(bug.kind)
            assert repaired(bug.source, bug.repair) == source
    assert len(kinds) > 8


def test_half_of_the_default_mix_misses_content() -> None:
    missing = {"deleted_line", "dropped_expression", "dropped_argument", "dropped_wrapper", "initial_value"}
    missing |= {"dropped_return", "dropped_condition"}
    share = sum(DEFAULT_MIX[k] for k in missing) / sum(DEFAULT_MIX.values())
    assert 0.45 < share < 0.55
    assert set(DEFAULT_MIX) == set(MAKERS)
