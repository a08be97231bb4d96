"""A path is resolved before it is judged, and what is allowed lies inside the work tree."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3_tools.base import ToolContext, ToolError
from m3_tools.paths import relative_name, resolve_for_writing, resolve_inside

PARTS = st.sampled_from(
    ["a", "b", "in", "out", "loop", "deep", "..", ".", "", "x y", "-f", "ü", "\udcff", "nul\0", "~"]
)


@pytest.fixture(scope="module")
def tree() -> Path:
    """root/ with links that stay inside, links that leave, and a link to itself; a secret beside root/."""
    base = Path(tempfile.mkdtemp()).resolve()
    root = base / "root"
    (root / "a" / "deep").mkdir(parents=True)
    (base / "rootling").mkdir()
    (base / "secret").write_text("s")
    (root / "in").symlink_to("a")
    (root / "out").symlink_to(base)
    (root / "a" / "out").symlink_to("../../secret")
    (root / "loop").symlink_to("loop")
    return root


@given(parts=st.lists(PARTS, max_size=8), absolute=st.booleans())
def test_every_path_is_inside_or_refused(tree: Path, parts: list[str], absolute: bool) -> None:
    path = ("/" if absolute else "") + "/".join(parts)
    try:
        real = resolve_inside(tree, path)
    except ToolError:
        return
    assert real == tree or tree in real.parents
    # The kernel agrees: where it can follow the name at all, it arrives at the same place.
    assert os.path.realpath(tree / path) == str(real)


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "out",
        "out/secret",
        "a/out",
        "/etc/passwd",
        "a/../../secret",
        "../rootling/x",
        "in/../../secret",
        "",
        "a\0b",
        " ",
    ],
)
def test_ways_out_are_refused(tree: Path, path: str) -> None:
    with pytest.raises(ToolError):
        resolve_inside(tree, path)


@pytest.mark.parametrize("path", ["a", "in/deep/new.py", "a/../in", ".", "./a//deep", "..a", "-f"])
def test_names_that_stay_inside_are_taken(tree: Path, path: str) -> None:
    assert tree in [resolve_inside(tree, path), *resolve_inside(tree, path).parents]


def test_an_absolute_path_inside_is_taken(tree: Path) -> None:
    assert relative_name(tree, resolve_inside(tree, str(tree / "in" / "deep"))) == "a/deep"


@pytest.mark.parametrize("path", [".git/config", ".git", "a/../.git/hooks/x", ".GIT/config", ".m3/x", "a/.git", "."])
def test_nothing_is_written_into_git_m3_or_the_root_itself(tree: Path, path: str) -> None:
    with pytest.raises(ToolError):
        resolve_for_writing(ToolContext(root=tree, spill_dir=tree.parent / "spill"), path)


def test_a_name_with_odd_characters_is_shown_on_one_line(tree: Path) -> None:
    name = relative_name(tree, tree / "new\nline\udcff\x1b[31m")
    assert name == "new\\nline\\xff\\x1b[31m"
    name.encode("utf-8")
