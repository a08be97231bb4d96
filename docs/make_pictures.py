"""Draws the README's picture of a run: a recorded session through the view that a terminal gets.

    python docs/make_pictures.py [OUT_DIR]        # default docs/images; needs `make demo` or an installed m3

No model and no tool runs. The session is tests/transcripts/fix-inventory.jsonl, as the run wrote it.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
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
    svg = console.export_svg(title="m3", unique_id="m3")
    fonts = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
    return fonts.sub("", svg)  # Rich points at a font on a foreign server; a reader's own monospace font will do


def main(argv: list[str]) -> None:
    folder = Path(argv[0]) if argv else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "fix.svg"
    out.write_text(picture(), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main(sys.argv[1:])
