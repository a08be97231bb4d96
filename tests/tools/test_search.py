"""grep, glob and outline: the same files and lines as ripgrep and git would name, in an order that never changes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from m3_tools.base import TodoBlock, ToolContext, ToolResult
from m3_tools.glob import GlobTool
from m3_tools.grep import MAX_MATCHES, GrepTool
from m3_tools.outline import OutlineTool
from m3_tools.todo import TodoTool

Call = Callable[..., ToolResult]


@pytest.fixture
def tree(context: ToolContext) -> Path:
    root = context.root
    files = {
        ".gitignore": "*.log\n/build/\n",
        ".github/ci.yml": "needle: ci\n",
        ".git/config": "needle\n",
        "src/a.py": "def needle():\n    return 1\n\n\ndef other():\n    return needle()\n",
        "src/deep/b.ts": "export class Needle {\n  find(): number { return 1 }\n}\n",
        "build/out.py": "needle = 1\n",
        "debug.log": "needle\n",
        "-dash.py": "needle = 2\n",
        "with space.py": "needle = 3\n",
        "new\nline.py": "needle = 4\n",
        "long.txt": "x" * 5000 + "needle" + "y" * 5000 + "\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / os.fsdecode(b"bytes\xff.py")).write_bytes(b"needle \xff\n")
    (root / "image.bin").write_bytes(b"\x00\x01needle\x00")
    (root / "link").symlink_to("/etc")
    return root


def test_glob_agrees_with_git(tree: Path, call: Call) -> None:
    (tree / ".git" / "config").unlink()
    (tree / ".git").rmdir()
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard", "*.py"], cwd=tree, check=True, capture_output=True
    )
    names = call(GlobTool(), pattern="*.py").text.split("\n")
    assert len(names) == len(listed.stdout.split(b"\0")) - 1 == 5
    assert {"-dash.py", "src/a.py", "with space.py", "new\\nline.py", "bytes\\xff.py"} == set(names)
    assert names == call(GlobTool(), pattern="*.py").text.split("\n")


def test_glob_patterns(tree: Path, call: Call) -> None:
    assert call(GlobTool(), pattern="src/**/*.ts").text == "src/deep/b.ts"
    assert call(GlobTool(), pattern="*.ts", path="src").text == "src/deep/b.ts"
    assert call(GlobTool(), pattern="*.yml").text == ".github/ci.yml"
    assert "ignored files were not looked at" in call(GlobTool(), pattern="*.log").text
    assert call(GlobTool(), pattern="*.log", include_ignored=True).text == "debug.log"
    assert call(GlobTool(), pattern="config", include_ignored=True).text.startswith("No file")
    assert call(GlobTool(), pattern="*.{yml,ts}").text == ".github/ci.yml\nsrc/deep/b.ts"
    assert call(GlobTool(), pattern="src").text == call(GlobTool(), pattern="src/").text == "src/a.py\nsrc/deep/b.ts"
    (tree / "v1.2").mkdir()
    (tree / "v1.2" / "notes").touch()
    assert call(GlobTool(), pattern="v1.2").text == "v1.2/notes"
    assert call(GlobTool(), pattern="*").text == call(GlobTool(), pattern="?*").text
    assert call(GlobTool(), pattern="!x").is_error
    assert "outside" in call(GlobTool(), pattern="*", path="link").text


def test_grep_shows_labelled_lines_under_sorted_files(tree: Path, call: Call) -> None:
    result = call(GrepTool(), pattern="needle", glob="*.py")
    assert result.text.split("\n") == [
        "-dash.py",
        "L1|needle = 2",
        "bytes\\xff.py",
        "L1|needle \ufffd",
        "new\\nline.py",
        "L1|needle = 4",
        "src/a.py",
        "L1|def needle():",
        "L6|    return needle()",
        "with space.py",
        "L1|needle = 3",
    ]


def test_grep_options(tree: Path, call: Call) -> None:
    assert "Needle" in call(GrepTool(), pattern="needle", ignore_case=True, path="src/deep").text
    plain = call(GrepTool(), pattern="needle()", literal=True, path="src").text
    assert plain == "src/a.py\nL1|def needle():\nL6|    return needle()"
    around = call(GrepTool(), pattern="def other", path="src/a.py", context=1).text
    assert around == "src/a.py\nL4-\nL5|def other():\nL6-    return needle()"
    assert "build/out.py" in call(GrepTool(), pattern="needle", include_ignored=True).text
    assert call(GrepTool(), pattern="needle", glob="src/**/*.py").text.startswith("src/a.py\n")
    assert "src/a.py\n" in call(GrepTool(), pattern="needle", glob="*.{py,ts}").text
    assert call(GrepTool(), pattern="needle", glob="*.log").text.startswith("No match")  # the ignore rules still hold
    assert ".git/config" not in call(GrepTool(), pattern="needle", include_ignored=True).text


def test_a_glob_with_an_exclamation_mark_leaves_files_out(tree: Path, call: Call) -> None:
    everything = call(GrepTool(), pattern="needle").text
    assert "src/a.py" in everything
    rest = call(GrepTool(), pattern="needle", glob="!src/**").text
    assert "src/" not in rest
    assert "with space.py" in rest
    assert "debug.log" not in rest  # the ignore rules still hold
    assert call(GrepTool(), pattern="needle", glob="!").is_error


def test_grep_cuts_long_lines_around_the_match_and_names_binary_files(tree: Path, call: Call) -> None:
    text = call(GrepTool(), pattern="needle").text
    assert "image.bin (binary, or holds NUL bytes: it matches, not shown)" in text
    row = next(line for line in text.split("\n") if "xneedley" in line)
    assert len(row) < 400
    assert row.startswith("L1|[4,9")


def test_grep_reads_ripgrep_right_whatever_names_and_lines_hold(tree: Path, call: Call) -> None:
    (tree / "12-x\n\n1:1:y").write_bytes(b"a\n\nhit: binary file matches\r\n7-b\n--\n")
    (tree / "7:bin").write_bytes(b"hit early\n" + b"x\n" * 70_000 + b"\0 hit\n")
    (tree / "wide").write_bytes("ü".encode() * 500 + b"hit\n")
    (tree / "utf16").write_bytes("\ufeffone hit\n".encode("utf-16-le"))
    assert call(GrepTool(), pattern="hit", context=1).text.split("\n") == [
        "12-x\\n\\n1:1:y",
        "L2-",
        "L3|hit: binary file matches",
        "L4-7-b",
        "7:bin (binary, or holds NUL bytes: it matches, not shown)",
        "utf16",
        "L1|one hit",
        "wide",
        f"L1|[203 characters …] {'ü' * 297}hit",
    ]


def test_grep_says_when_there_is_more(tree: Path, call: Call) -> None:
    (tree / "many.txt").write_text("hit\n" * 1000)
    rows = call(GrepTool(), pattern="hit").text.split("\n")
    assert len(rows) == MAX_MATCHES + 2
    assert rows[-1].startswith("(800 more matches; 1,000 in 1 files in all.")


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("(", ".", "wrong at character 1: unclosed group."),
        ("absent!", ".", "No match for 'absent!'"),
        ("a", "../x", "outside"),
        ("", ".", "empty"),
    ],
)
def test_grep_without_a_result_says_why(tree: Path, call: Call, pattern: str, path: str, expected: str) -> None:
    assert expected in call(GrepTool(), pattern=pattern, path=path).text


@pytest.mark.parametrize(
    ("pattern", "where"),
    [
        ("(", 1), ("foo(", 4), (r"\((", 3), ("[(](", 4), ("a(b)(c", 5), ("*a", 1), ("a(?=b)", 2), ("[z-a]", 2),
        (r"\p{Foo}", 1), ("a{2,1}", 2), ("ab(?<n", 7), ("ü(", 2), ("a)", 2), ("[a", 1),
    ],
)  # fmt: skip
def test_a_wrong_expression_is_one_line_with_its_place(tree: Path, call: Call, pattern: str, where: int) -> None:
    result = call(GrepTool(), pattern=pattern)
    assert result.is_error
    assert "\n" not in result.text
    assert result.text.startswith(f"{pattern!r} is not a regular expression, wrong at character {where}: ")
    assert ". Mend it, or set literal=true" in result.text
    assert not call(GrepTool(), pattern=pattern, literal=True).is_error


def test_a_line_break_in_a_pattern_is_refused_plainly(tree: Path, call: Call) -> None:
    for pattern in ("a\\nb", "a\nb"):
        assert call(GrepTool(), pattern=pattern).text == (
            "grep searches line by line: the pattern must not hold a line break."
        )


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"pattern": "NEEDLE", "path": "src"}, " With ignore_case=true it matches 4 lines in 2 files."),
        ({"pattern": "needle", "glob": "*.log"}, " With include_ignored=true it matches 1 line in 1 file."),
        ({"pattern": "needle = 1"}, " With include_ignored=true it matches 1 line in 1 file."),
        ({"pattern": "nowhere"}, ""),
        ({"pattern": "NEEDLE", "path": "src", "glob": "*.py"}, " With ignore_case=true it matches 3 lines in 1 file."),
        ({"pattern": "NEEDLE", "path": "src", "glob": "*.go"}, ""),
    ],
)
def test_no_match_says_where_one_would_be(tree: Path, call: Call, arguments: dict[str, str], hint: str) -> None:
    (tree / "src/a.py").write_text("needle\nNeedle\nneedle()\n")
    (tree / "src/deep/b.ts").write_text("Needle\n")
    text = call(GrepTool(), **arguments).text
    assert text.startswith("No match for ")
    assert text.endswith(f"(ignored files were not searched).{hint}"), text


def test_a_pattern_that_looks_like_an_option_is_a_pattern(tree: Path, call: Call) -> None:
    (tree / "o.txt").write_text("run --files now\n")
    assert call(GrepTool(), pattern="--files").text == "o.txt\nL1|run --files now"


def test_outline_of_a_file_and_of_a_folder(tree: Path, call: Call) -> None:
    assert call(OutlineTool(), path="src/a.py").text == "src/a.py\nL1|def needle():\nL5|def other():"
    text = call(OutlineTool(), path="src").text
    assert text.endswith("src/deep/b.ts\nL1|class Needle\nL2|    find(): number")
    assert "without a grammar" in call(OutlineTool(), path="long.txt").text
    assert "no source files" in call(OutlineTool(), path=".github").text


def test_todo_shows_the_list_and_refuses_two_active_steps(call: Call) -> None:
    result = call(
        TodoTool(), items=[{"text": "find", "state": "done"}, {"text": "mend\nit", "state": "active"}, {"text": "test"}]
    )
    assert result.text == "[x] find\n[>] mend it\n[ ] test"
    assert result.display == (TodoBlock(items=(("done", "find"), ("active", "mend it"), ("pending", "test"))),)
    assert (
        "More than one"
        in call(TodoTool(), items=[{"text": "a", "state": "active"}, {"text": "b", "state": "active"}]).text
    )
