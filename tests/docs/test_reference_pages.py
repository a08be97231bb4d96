"""The pages that programs are written against say what the code does."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from m3agent.budget import Budget
from m3agent.events import Event, RunEnded
from m3agent.exits import Exit
from m3agent.fix.issue import Issue
from m3agent.fix.outcome import EXIT_CODES
from m3agent.fix.report import SCHEMA, build_report
from m3agent.messages import assistant, message_to_json
from m3agent.session.store import SessionStore

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = ROOT / "tests" / "transcripts"
PAGE = (ROOT / "docs" / "json-output.md").read_text(encoding="utf-8")
GROUPS = ("issue", "tests", "candidates", "tokens")
SCHEMA_FILE = ROOT / "docs" / "fix-result.schema.json"
"""Objects of the report that have fixed fields of their own."""


def table(name: str) -> list[list[str]]:
    """The rows of the table behind `<!-- table: name -->`, without its head."""
    lines = PAGE.split(f"<!-- table: {name} -->\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def flat(report: dict[str, Any]) -> list[str]:
    """The report's fields in their order, those of the fixed groups with a dot."""
    return [
        field
        for key, value in report.items()
        for field in ([f"{key}.{inner}" for inner in value] if key in GROUPS else [key])
    ]


def test_the_table_of_the_events_is_that_of_their_classes() -> None:
    classes = Event.__args__  # type: ignore[attr-defined]
    expected = [[c.__dataclass_fields__["kind"].default, [f.name for f in dataclasses.fields(c)][:-1]] for c in classes]
    assert [[names(kind)[0], names(fields)] for kind, fields, _ in table("events")] == expected


def test_the_table_of_the_fix_report_is_what_a_run_that_found_nothing_writes(tmp_path: Path) -> None:
    issue = Issue(title="t", body="", source="s")
    report = build_report(issue=issue, repo=tmp_path, model="nano", strategy="auto", budget=Budget())
    assert [names(row[0])[0] for row in table("fix")] == flat(report)
    assert f"`schema` is {SCHEMA};" in PAGE


def test_the_table_of_the_fix_report_is_what_a_recorded_run_wrote() -> None:
    ended = SessionStore(TRANSCRIPTS).read("fix-inventory").events[-1]
    assert isinstance(ended, RunEnded)
    report = dict(ended.report)
    fields = [names(row[0])[0] for row in table("fix")]
    assert [field for field in fields if field in flat(report)] == flat(report)  # a field may be newer than the run
    (runs,) = (row[1] for row in table("fix") if row[0] == "`runs`")
    assert all(names(runs) == list(run) for run in report["runs"])
    counts = names(PAGE.split("*Counts*")[1].split(".\n")[0])
    assert all(counts == list(report["tests"][key]) for key in ("before", "after", "undone"))


def test_the_schema_names_exactly_the_fields_of_the_table() -> None:
    """Order apart: `duration_s` is in the head and in the report, and once in the object."""
    properties = json.loads(SCHEMA_FILE.read_text())["properties"]
    named = [
        field
        for key, value in properties.items()
        for field in (
            [f"{key}.{inner}" for inner in value["properties"]] if key in GROUPS and key != "tokens" else [key]
        )
    ]
    tokens = [f"tokens.{name}" for name in properties["tokens"]["required"]]
    rows = {names(row[0])[0] for row in (*table("head"), *table("fix"))}
    assert {*named, *tokens} - {"tokens"} == rows
    required = json.loads(SCHEMA_FILE.read_text())["required"]
    assert set(required) == set(properties)
    assert properties["exit_code"]["enum"] == sorted(Exit)
    assert set(properties["outcome"]["enum"]) == {*EXIT_CODES, "error", "model_unavailable"}


def test_every_outcome_of_a_fix_is_named() -> None:
    (outcomes,) = (row[1] for row in table("head") if row[0] == "`outcome`")
    assert set(names(outcomes)) == {*EXIT_CODES, "fix", "error", "model_unavailable"}


def test_the_result_of_a_run_has_the_fields_of_its_tables(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps(message_to_json(assistant("Nothing to do."))) + "\n")
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))
    environment = {**os.environ, "PYTHONPATH": paths, "M3_HOME": str(tmp_path / "home")}
    options = ["--repo", str(tmp_path), "--model", f"scripted:{script}", "--output", "json"]
    command = [sys.executable, "-m", "m3agent", "run", "Look.", *options]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True
    )
    assert [names(row[0])[0] for row in [*table("head"), *table("run")]] == list(json.loads(done.stdout))


def test_the_page_of_the_exit_codes_is_the_enumeration() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", (ROOT / "docs" / "exit-codes.md").read_text("utf-8"), re.MULTILINE)
    assert [(int(code), name) for code, name in rows] == [(code.value, code.name) for code in Exit]


def test_the_readme_names_every_exit_code() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("| exit code |", 1)[1].split("\n\n")[0]
    assert sorted(int(number) for number in re.findall(r"\| (\d+)(?= \|)", text)) == sorted(Exit)


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md")))
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    assert_links(ROOT / page)


@pytest.mark.parametrize("page", ["README.md", "model/m3_model/nano/README.md", "training/NOTES.md"])
def test_links_of_the_front_pages_lead_somewhere(page: str) -> None:
    assert_links(ROOT / page)


def assert_links(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page} points at {target}"
