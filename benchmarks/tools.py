"""How fast are grep, glob, outline and read on a large tree, beside ripgrep itself?

    python -m benchmarks.tools [--repeats 7] [--files 100000] [--lines 1000000]

Makes, in a temporary folder: a tree of 100,000 small source files, an eighth of them ignored; a repository of a million
lines, the standard library of this Python as often as that takes, no file twice the same; and a file of 1 GB. Each
repeat measures everything once, a tool and ripgrep in turn, from files that the system has in memory. A row of grep and
glob is the median time of the tool, that of `rg` for the same files and options with its output read from a pipe, and
their ratio; least and most are given, too, and the work of the processors, which other work on the machine does not
change. The bars: 1.2 times `rg`, 20 s and 1 s for the outlines, 0.1 s for the read.
The result is one JSON file under benchmarks/results/; the exit code is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.heldout import machine
from m3_tools.base import Tool, ToolContext, call_tool
from m3_tools.glob import GlobTool
from m3_tools.grep import GrepTool
from m3_tools.outline import OutlineTool, outline_of
from m3_tools.read import ReadTool
from m3_tools.ripgrep import find_ripgrep, list_names

FILES_A_FOLDER = 100
HUGE_BYTES = 10**9
RATIO_BAR, COLD_BAR_S, WARM_BAR_S, READ_BAR_S = 1.2, 20.0, 1.0, 0.1
SEARCHES: Mapping[str, tuple[dict[str, Any], list[str]]] = {
    "grep, a word in 10 files": ({"pattern": "rare_needle"}, ["-n", "rare_needle"]),
    "grep, a word in 1,000 files": ({"pattern": "some_needle"}, ["-n", "some_needle"]),
    "grep, a word in every file": ({"pattern": "def "}, ["-n", "def "]),
    "grep, an expression in one kind of file": (
        {"pattern": r"some_\w+\(\d+\)", "glob": "*.py"},
        ["-n", r"some_\w+\(\d+\)", "--type-add=w:*.py", "--type=w"],
    ),
    "grep, three lines around a word": ({"pattern": "rare_needle", "context": 3}, ["-n", "-C3", "rare_needle"]),
}
"""The arguments of grep and of `rg`."""
NAMES: Mapping[str, tuple[dict[str, Any], list[str]]] = {
    "glob, one name": ({"pattern": "module_4242.py"}, ["--type-add=w:module_4242.py", "--type=w"]),
    "glob, one kind of file": ({"pattern": "*.js"}, ["--type-add=w:*.js", "--type=w"]),
    "glob, a folder at any depth": ({"pattern": "part_7/**/*.py"}, ["--glob=/part_7/**/*.py"]),
    "glob, every file": ({"pattern": "*"}, []),
}
COMMON = ["--no-config", "--hidden", "--no-require-git", "--color=never", "--glob=!.git", "--glob=!.m3"]
"""What the tools tell ripgrep, too."""


def make_tree(root: Path, num_files: int) -> None:
    """Small files in folders two deep. Every 100th has one word, ten have another."""
    root.mkdir()
    (root / ".gitignore").write_text("*.log\n")
    for number in range(num_files):
        folder = root / f"part_{number % 10}" / f"package_{number // FILES_A_FOLDER}"
        if number % FILES_A_FOLDER < 10:
            folder.mkdir(parents=True, exist_ok=True)
        lines = [f"def function_{number}_{line}(value):\n    return value + {line}\n" for line in range(4)]
        lines += [f"some_needle({number})\n"] * (number % 100 == 0) + ["rare_needle = 1\n"] * (number % 10_000 == 3)
        kind = ("py", "py", "py", "py", "js", "ts", "md", "log")[number % 8]
        (folder / f"module_{number}.{kind}").write_text("".join(lines))


def make_repository(root: Path, num_lines: int) -> int:
    """The standard library until there are so many lines; how many files that took."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]
    num_files = 0
    for copy in range(1000):
        for source in sources:
            data = f"# copy {copy}\n".encode() + source.read_bytes()
            target = root / f"copy_{copy}" / source.relative_to(library)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            num_files += 1
            num_lines -= data.count(b"\n")
            if num_lines <= 0:
                return num_files
    raise AssertionError("unreachable")


def make_huge(path: Path) -> None:
    line = b"a line of a log that has grown without anybody looking at it\n"
    with path.open("wb") as file:
        for _ in range(100):
            file.write((line * (HUGE_BYTES // len(line) // 100 + 1))[: HUGE_BYTES // 100])


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def seconds_and_work(work: Callable[[], object]) -> tuple[float, float]:
    """What a clock says, and what the processors did, also in programs that were started."""
    before = os.times()
    taken = seconds(work)
    return taken, sum(os.times()[:4]) - sum(before[:4])


def run(tool: Tool[Any], context: ToolContext, arguments: Mapping[str, Any]) -> str:
    result = asyncio.run(call_tool(tool, arguments, context))
    assert not result.is_error, result.text
    return result.text


def ripgrep(root: Path, arguments: Sequence[str]) -> None:
    done = subprocess.run([find_ripgrep(), *COMMON, *arguments, "."], cwd=root, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def whole_outline(context: ToolContext) -> int:
    """Every definition of the repository, as the beginning of a prompt has them."""
    names = asyncio.run(list_names(context, context.root))
    return sum(len(outline_of(name, (context.root / name).read_bytes())) for name in names)


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"s": round(statistics.median(values), 4), "least": round(min(values), 4), "most": round(max(values), 4)}


def compare(context: ToolContext, repeats: int) -> dict[str, Any]:
    """Each search by the tool and by ripgrep."""
    searches = {name: (GrepTool(), given, theirs) for name, (given, theirs) in SEARCHES.items()}
    names = {name: (GlobTool(), given, ["--files", *theirs]) for name, (given, theirs) in NAMES.items()}
    rows: dict[str, Any] = {}
    for name, (tool, given, options) in {**searches, **names}.items():
        ours_s, theirs_s = list[tuple[float, float]](), list[tuple[float, float]]()
        for repeat in range(-1, repeats):
            ours = seconds_and_work(functools.partial(run, tool, context, given))
            theirs = seconds_and_work(functools.partial(ripgrep, context.root, options))
            if repeat >= 0:  # the first round warms both up
                ours_s.append(ours)
                theirs_s.append(theirs)
        rows[name] = {"m3": spread([s for s, _ in ours_s]), "rg": spread([s for s, _ in theirs_s])}
        rows[name]["ratio"] = round(rows[name]["m3"]["s"] / rows[name]["rg"]["s"], 2)
        work = [statistics.median(work for _, work in side) for side in (ours_s, theirs_s)]
        rows[name]["processor_s"] = {"m3": round(work[0], 3), "rg": round(work[1], 3)}
        print(f"{name}: {rows[name]}", file=sys.stderr)
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tools", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--lines", type=int, default=1_000_000)
    options = parser.parse_args(argv)
    host = machine()
    with tempfile.TemporaryDirectory(prefix="m3-tools-") as name:
        folder = Path(name).resolve()
        make_tree(folder / "tree", options.files)
        num_sources = make_repository(folder / "repository", options.lines)
        make_huge(folder / "tree" / "huge.txt.log")
        print("the files are made", file=sys.stderr)

        def context(root: str) -> ToolContext:
            return ToolContext(root=folder / root, spill_dir=folder / "spill")

        rows = compare(context("tree"), options.repeats)
        tree, repository = context("tree"), context("repository")
        reads = [seconds(lambda: run(ReadTool(), tree, {"path": "huge.txt.log"})) for _ in range(options.repeats)]
        before = time.process_time()
        cold_s = seconds(lambda: whole_outline(repository))
        cold_cpu_s = time.process_time() - before
        warm = [seconds(lambda: whole_outline(repository)) for _ in range(options.repeats)]
        tool = [seconds(lambda: run(OutlineTool(), repository, {})) for _ in range(options.repeats)]
        num_definitions = whole_outline(repository)
    result = {
        "benchmark": "tools",
        "machine": host,
        "rg": subprocess.run([find_ripgrep(), "--version"], capture_output=True, text=True).stdout.split("\n")[0],
        "load": [round(value, 1) for value in os.getloadavg()],
        "repeats": options.repeats,
        "files": options.files,
        "beside rg": rows,
        "outline": {
            "lines": options.lines,
            "files": num_sources,
            "definitions": num_definitions,
            "cold_s": round(cold_s, 2),
            "of the processor, cold_s": round(cold_cpu_s, 2),
            "warm": spread(warm),
            "one call of the tool": spread(tool),
        },
        "read of 1 GB": spread(reads),
    }
    missed = [f"{name} takes {row['ratio']} times rg" for name, row in rows.items() if row["ratio"] > RATIO_BAR]
    missed += [f"the outline takes {cold_s:.1f} s"] * (cold_s > COLD_BAR_S)
    missed += ["the outline is slow the second time"] * (statistics.median(warm) > WARM_BAR_S)
    missed += ["the read of 1 GB is slow"] * (statistics.median(reads) > READ_BAR_S)
    result["missed"] = missed
    out = Path(__file__).parent / "results" / f"tools-{host['date']}.json"
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
