"""Any file and any edit: the ladder refuses in words, or changes the places that it names and nothing else."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import strategies as st

from m3_tools.base import ToolError
from m3_tools.match import RUNGS, find
from m3_tools.text import Text
from tests.fuzz.fuzzing import fuzz

PIECES = st.sampled_from(
    ["a", "b", "if x:", "return", "}", " ", "  ", "    ", "\t", "\n", "\n", "\r\n", "\r", "\\", "$", "(", "[", ".*",
     "é", "\x00", "\x0b", "\x0c", "\x85", "\u2028", "\ufeff", "\u0301", "😀", "L1|"]
)  # fmt: skip
texts = st.lists(PIECES, max_size=16).map("".join)
BYTES = st.one_of(
    texts.map(lambda text: text.encode()), texts.map(lambda text: b"\xff\xfe" + text.encode("utf-16-le")),
    texts.map(lambda text: text.encode("latin-1", "replace")), st.binary(max_size=40),
).map(lambda data: data.decode("latin-1"))  # fmt: skip


@st.composite
def edits(draw: st.DrawFn) -> dict[str, Any]:
    """A file, as text in which a character is a byte, and what a model sends: often a piece of it, a little changed."""
    data = draw(BYTES)
    text = Text.decode(data.encode("latin-1")).text
    start, size = draw(st.integers(0, max(0, len(text) - 1))), draw(st.integers(1, 30))
    old = draw(st.one_of(st.just(text[start : start + size]), texts))
    change = draw(st.sampled_from(["", "lf", "strip", "indent", "tab"]))
    if change == "lf":
        old = old.replace("\r\n", "\n")
    if change == "strip":
        old = "\n".join(line.rstrip() for line in old.split("\n"))
    if change in ("indent", "tab"):
        old = "\n".join(("  " if change == "indent" else "\t") + line for line in old.split("\n"))
    return {"data": data, "old": old, "new": draw(st.one_of(texts, st.just(old + "n"))), "every": draw(st.booleans())}


def behaviour(case: dict[str, Any]) -> str:
    if not case["old"]:
        return "empty"
    source = Text.decode(case["data"].encode("latin-1"))
    started = time.process_time()
    try:
        rung, found = find(source, case["old"], case["new"], every=case["every"])
        after = source.replace([(r.start, r.end, r.new) for r in found])
    except ToolError as error:
        str(error).encode()  # the model can be told
        return f"refused {str(error)[:34]}"
    finally:
        assert time.process_time() - started < 2
    assert len(found) == 1 or case["every"]
    position, kept = 0, []
    for piece in found:
        assert position <= piece.start <= piece.end <= len(source.text)
        kept.append(source.text[position : piece.start])
        position = piece.end
    kept.append(source.text[position:])
    place = 0
    for text in [source.bom, *(text.encode(source.encoding, source.errors) for text in kept)]:
        place = after.find(text, place)
        assert place >= 0, "a byte outside of the edit changed"
        place += len(text)
    assert after.endswith(kept[-1].encode(source.encoding, source.errors))
    if rung == RUNGS[0]:
        assert all(source.text[r.start : r.end] == case["old"] for r in found)
    return f"{rung} {source.encoding} {min(len(found), 3)} {case['every']}"


def test_an_edit_is_refused_or_touches_nothing_else() -> None:
    fuzz("edit_ladder", edits(), behaviour)
