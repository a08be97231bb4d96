from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3agent.llm.protocol import TextDelta, ThinkDelta
from m3agent.llm.think_markers import CLOSE, OPEN, ThinkMarkers


def split(pieces: list[str]) -> tuple[str, str]:
    markers = ThinkMarkers()
    deltas = [delta for piece in pieces for delta in markers.feed(piece)] + markers.finish()
    return (
        "".join(d.text for d in deltas if isinstance(d, ThinkDelta)),
        "".join(d.text for d in deltas if isinstance(d, TextDelta)),
    )


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("plain", "", "plain"),
        (f"{OPEN}why{CLOSE}so", "why", "so"),
        (f"{CLOSE}so", "", "so"),
        (f"\n{OPEN}why", "why", ""),
        (f"{OPEN}a < b{CLOSE}", "a < b", ""),
        (f"so {OPEN}x{CLOSE}", "", f"so {OPEN}x{CLOSE}"),
        ("<mm:thin", "", "<mm:thin"),
        (f"{OPEN}why</mm:thi", "why</mm:thi", ""),
        ("  indented", "", "  indented"),
    ],
)
def test_only_leading_markers_count(text: str, thought: str, answer: str) -> None:
    assert split([text]) == (thought, answer)
    assert split(list(text)) == (thought, answer)


@given(st.lists(st.sampled_from([OPEN, CLOSE, "a", "<", "mm:think>", " ", "\n"]), max_size=8), st.integers(1, 5))
def test_how_the_text_was_cut_changes_nothing(parts: list[str], size: int) -> None:
    text = "".join(parts)
    assert split([text]) == split([text[i : i + size] for i in range(0, len(text), size)])
