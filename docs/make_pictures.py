"""Draws the pictures of the docs: a recorded run for the README, and the main views of the chat.

    python docs/make_pictures.py [OUT_DIR]        # default docs/images; needs `make demo` or an installed m3

The run is tests/transcripts/fix-inventory.jsonl as it was written, through the view that a terminal gets; no model and
no tool runs. The views of the chat are those of its golden screens (tests/agent/chat/scenes.py): the real `m3 chat` in
a pseudo-terminal, before a server that plays a script.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

from m3agent.session.replay import replay
from m3agent.session.store import SessionStore
from m3agent.ui.terminal import TerminalView

ROOT = Path(__file__).resolve().parents[1]
SESSION = "fix-inventory"
COMMAND = "m3 fix --repo /tmp/inventory --issue 1 --model nano --seed 1"
WIDTH = 118


def picture(transcripts: Path = ROOT / "tests" / "transcripts", session: str = SESSION) -> str:
    """The session as an SVG: everything that stays on the screen, none of what moves. The same input gives the same
    text, with one version of Rich."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        color_system="truecolor",
        legacy_windows=False,
        force_terminal=False,
        highlight=False,
        emoji=False,
        markup=False,
        _environ={},
    )
    console.print(Text.assemble(("$ ", "dim"), COMMAND))
    replay(SessionStore(transcripts).read(session), TerminalView(console, clock=lambda: 0.0))
    return without_fonts(console.export_svg(title="m3", unique_id="m3"))


def without_fonts(svg: str) -> str:
    """Rich points at a font on a foreign server; a reader's own monospace font will do."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def chat_pictures() -> Iterator[tuple[str, str]]:
    """Every main view of the chat by its name, at 80 by 24, in the light theme."""
    from tests.agent.chat.conftest import started
    from tests.agent.chat.scenes import settled, turns, walk
    from tests.agent.conftest import git

    pictures: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        home, repo = Path(folder) / "home", Path(folder) / "sums"
        repo.mkdir()
        home.mkdir()
        (home / "config.toml").write_text('theme = "light"\n')
        (repo / "sums.py").write_text("def add(a, b):\n    return a - b\n")
        (repo / "test_sums.py").write_text("from sums import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n")
        git(repo, "init", "-q")
        with started(repo, home, *turns()) as (terminal, _):

            def shot(name: str) -> None:
                settled(terminal)
                pictures.append((name, screen_picture(terminal.screen)))

            walk(terminal, shot)
    yield from pictures


def screen_picture(screen: pyte.Screen) -> str:
    """A screen as an SVG, cell by cell."""
    console = Console(
        file=io.StringIO(), record=True, width=screen.columns, color_system="truecolor", legacy_windows=False,
        force_terminal=False, highlight=False, emoji=False, markup=False, _environ={},
    )  # fmt: skip
    for row in range(screen.lines):
        line = Text(no_wrap=True)
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            line.append(cell.data, _style(cell))
        console.print(line)
    return without_fonts(console.export_svg(title="m3 chat", unique_id="m3", theme=DEFAULT_TERMINAL_THEME))


def _style(cell: pyte.screens.Char) -> Style:
    return Style(
        color=_colour(cell.fg), bgcolor=_colour(cell.bg), bold=cell.bold, italic=cell.italics,
        underline=cell.underscore, reverse=cell.reverse,
    )  # fmt: skip


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    return f"#{name}" if re.fullmatch(r"[0-9a-f]{6}", name) else name.replace("brown", "yellow")


def main(argv: list[str]) -> None:
    folder = Path(argv[0]) if argv else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in [("fix", picture()), *((f"chat-{name}", svg) for name, svg in chat_pictures())]:
        out = folder / f"{name}.svg"
        out.write_text(svg, encoding="utf-8")
        print(out)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools")]
    main(sys.argv[1:])
