"""The main views as a person sees them, kept as text. `UPDATE_SCREENS=1` writes them anew; then look at them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.agent.chat.conftest import Talk
from tests.agent.chat.scenes import settled, turns, walk

GOLDEN = Path(__file__).parent / "screens"
NARROW = 60
"""Below this, a duration more or less moves words to other rows: then only the words and their order are compared."""


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 20), (200, 50)])
def test_the_main_views_look_as_they_were_looked_at(talk: Talk, repo: Path, width: int, height: int) -> None:
    terminal, server = talk(*turns(), width=width, height=height)
    differing: dict[str, tuple[list[str], list[str]]] = {}

    def shot(name: str) -> None:
        rows = settled(terminal)
        assert max(map(len, rows)) <= width
        rows = [row for row in rows if str(repo)[:12] not in row and "/repo" not in row]
        path = GOLDEN / f"{name}-{width}x{height}.txt"
        if os.environ.get("UPDATE_SCREENS"):
            GOLDEN.mkdir(exist_ok=True)
            path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        kept = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        if not alike(rows, kept, width):
            differing[name] = (rows, kept)

    walk(terminal, shot)
    for name, (rows, kept) in differing.items():
        assert rows == kept, name
    assert (repo / "sums.py").read_text() == "def add(a, b):\n    return a + b\n", "as the person wrote it"
    told = [m["content"] for m in server.requests[2]["messages"] if m["role"] == "tool"]
    assert told[-1].startswith("The person changed this call before it ran")
    assert "Traceback" not in terminal.raw


def alike(rows: list[str], kept: list[str], width: int) -> bool:
    """Whether the rows are the same from the bottom up; in a narrow terminal the words, without the last line, which is
    cut. How far a screen has scrolled depends on how high the lines were that changed meanwhile.
    """
    one, other = ("\n".join(part).rstrip("\n").split("\n") for part in (rows, kept))
    if width < NARROW:
        one, other = (" ".join(part[:-1]).split() for part in (one, other))
    shared = min(len(one), len(other))
    return 3 * shared >= 2 * max(len(one), len(other)) and one[-shared:] == other[-shared:]
