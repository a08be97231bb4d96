"""`fix` with the search strategy, on the example repositories, with a model whose proposals are chosen here."""

from __future__ import annotations

import asyncio
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3agent.events import CandidateTried, MessageAdded, event_from_json, event_to_json
from m3agent.exits import Exit
from m3agent.fix.ranking import fused_log_shares
from m3agent.llm.protocol import CandidateReady, Finished, Options
from m3agent.messages import Message, ToolCall

STOCK = "shop/stock.py"
REORDER = [(STOCK, "needs_reorder", -0.5), (STOCK, "order", -1.5)]
RIGHT = ("replace", "L2|", "    return level <= limit", -2.0)
NEVER = ("replace", "L2|", "    return False", -1.0)
REGRESSES = ("replace", "L2|", "    return level == limit", -1.2)
NO_CHANGE = ("replace", "L2|", "    return (level < limit)  # as it was", -0.1)
NO_PYTHON = ("replace", "L2|", "    return level <= limit)", -0.2)
HANGS = ("replace", "L2|", "    while True: level = 0", -0.9)
Repository = Callable[[str], Path]
Run = Callable[..., Any]

SOLUTIONS = [
    (
        "inventory",
        "1",
        "inventory/stock.py",
        "Stock.needs_reorder",
        "L59|",
        "        return self.level(sku) <= item.reorder_level",
    ),
    (
        "date_parser",
        "1",
        "date_parser/calendar_math.py",
        "add_months",
        "L23|",
        "    return date(year, month, min(day.day, days_in_month(year, month)))",
    ),
    (
        "text_wrapper",
        "1",
        "text_wrapper/wrap.py",
        "wrap",
        "L37|",
        "            elif len(line) + len(piece) < width:",
    ),
    ("text_wrapper", "2", "text_wrapper/layout.py", "align", "L14|", '        return " " * gap + line'),
    (
        "http_client",
        "1",
        "http_client/client.py",
        "may_retry",
        "L40|",
        "    return attempt < retries and status in BUSY",
    ),
    (
        "room_booking",
        "1",
        "room_booking/span.py",
        "Span.overlaps",
        "L42|",
        "        return self.start < other.end and other.start < self.end",
    ),
]


def tried(result: Any) -> list[CandidateTried]:
    return [event for event in result.events.events if isinstance(event, CandidateTried)]


def messages(result: Any) -> tuple[Message, ...]:
    return tuple(event.message for event in result.events.events if isinstance(event, MessageAdded))


@pytest.mark.parametrize(("name", "ref", "path", "symbol", "line", "text"), SOLUTIONS)
def test_every_example_is_fixed_and_proven(
    name: str, ref: str, path: str, symbol: str, line: str, text: str, example: Repository, fix: Run, proposing: Any
) -> None:
    model = proposing([(path, symbol, -0.5)], {symbol: [("replace", line, text, -1.0)]})
    result = asyncio.run(fix(example(name), model, ref))
    assert result.code == Exit.OK, result.summary
    assert result.report["proven"]
    assert result.report["files"] == [path]
    tests = result.report["tests"]
    assert sorted(tests["fixed"]) == sorted(tests["targets"])
    assert tests["undone"] == {**tests["undone"], "passed": 0, "failed": len(tests["targets"])}
    assert tests["broken"] == tests["missing"] == []
    names = [run["name"] for run in result.report["runs"]]
    assert names[-1] == "undone"
    assert names.count("again") >= 3
    assert all(event_from_json(event_to_json(event)) == event for event in result.events.events)


def test_with_two_bugs_the_one_that_the_issue_speaks_of_is_the_target(
    example: Repository, fix: Run, proposing: Any
) -> None:
    repo = example("text_wrapper")
    first = asyncio.run(fix(repo, proposing([], {}), "1")).report["tests"]
    second = asyncio.run(fix(repo, proposing([], {}), "2")).report["tests"]
    assert {i.partition("::")[0] for i in first["targets"]} == {"tests/test_wrap.py"}
    assert {i.partition("::")[0] for i in second["targets"]} == {"tests/test_layout.py"}
    assert first["failed_before_too"] == second["targets"]


def test_wrong_candidates_come_first_and_useless_ones_are_never_run(shop: Path, fix: Run, proposing: Any) -> None:
    model = proposing(REORDER, {"needs_reorder": [NO_CHANGE, NO_PYTHON, NEVER, REGRESSES, RIGHT]})
    result = asyncio.run(fix(shop, model))
    assert result.code == Exit.OK, [(event.verdict, event.detail) for event in tried(result)]
    assert [event.verdict for event in tried(result)] == ["still_failing", "regressed", "fixed"]
    scores = [event.score for event in tried(result)]
    assert [score - scores[0] for score in scores] == pytest.approx([0.0, -0.2, -1.0])
    assert result.report["candidates"]["tried"] == 3


def test_a_candidate_that_hangs_is_stopped(shop: Path, fix: Run, proposing: Any) -> None:
    result = asyncio.run(fix(shop, proposing(REORDER, {"needs_reorder": [HANGS, RIGHT]})))
    assert [event.verdict for event in tried(result)] == ["broken", "fixed"]
    assert "stopped after" in tried(result)[0].detail
    assert result.code == Exit.OK


def test_all_candidates_wrong(shop: Path, fix: Run, proposing: Any) -> None:
    result = asyncio.run(fix(shop, proposing(REORDER, {"needs_reorder": [NEVER, REGRESSES]})))
    assert (result.code, result.outcome) == (Exit.NOT_FIXED, "not_fixed")
    assert "none of 2 tried edits" in result.summary
    assert not result.report["proven"]
    assert result.report["diff"] == ""


def test_no_more_candidates_are_tried_than_asked_for(shop: Path, fix: Run, proposing: Any) -> None:
    model = proposing(REORDER, {"needs_reorder": [NEVER, RIGHT]})
    result = asyncio.run(fix(shop, model, candidates=1))
    assert result.code == Exit.NOT_FIXED
    assert len(tried(result)) == 1


def test_the_prompt_only_ever_grows_and_the_session_holds_the_winning_path(
    shop: Path, fix: Run, proposing: Any
) -> None:
    model = proposing(REORDER, {"needs_reorder": [NEVER, RIGHT]})
    result = asyncio.run(fix(shop, model))
    final = messages(result)
    calls = [call.name for message in final for call in message.tool_calls]
    assert calls == ["test", "read", "edit_line", "test"]
    assert [message.role for message in final[:2]] == ["system", "user"]
    assert final[-1].text == "The comparison was wrong."
    on_the_winning_path = [asked for asked, _ in model.asked if asked == final[: len(asked)]]
    assert len(on_the_winning_path) >= 4
    for asked, _ in model.asked:
        assert asked[:4] == final[: len(asked[:4])]


def test_edits_are_bound_to_the_code_that_was_read(shop: Path, fix: Run, proposing: Any) -> None:
    elsewhere = ("replace", "L5|", "def order(limit, levels):", -0.1)
    model = proposing(REORDER, {"needs_reorder": [elsewhere, RIGHT]})
    result = asyncio.run(fix(shop, model))
    bound = next(options.fixed_arguments for _, options in model.asked if options.tool_choice == "edit_line")
    assert bound == {"path": [STOCK], "line": ["L1|", "L2|"]}
    assert [event.verdict for event in tried(result)] == ["fixed"]


def test_suspects_that_the_model_does_not_name_are_read_after_the_others(shop: Path, fix: Run, proposing: Any) -> None:
    model = proposing([(STOCK, "order", -0.1)], {"needs_reorder": [RIGHT]})
    result = asyncio.run(fix(shop, model))
    assert result.code == Exit.OK, result.summary


def test_the_patch_applies_to_the_original(shop: Path, fix: Run, proposing: Any) -> None:
    result = asyncio.run(fix(shop, proposing(REORDER, {"needs_reorder": [RIGHT]})))
    patch = Path(result.report["delivery"]["patch"])
    assert patch.is_relative_to(shop / ".m3")
    assert subprocess.run(["git", "status", "--porcelain"], cwd=shop, capture_output=True, text=True).stdout == ""
    subprocess.run(["git", "apply", str(patch)], cwd=shop, check=True)
    assert RIGHT[2] in (shop / STOCK).read_text()


def test_in_place_writes_the_proven_change(shop: Path, fix: Run, proposing: Any) -> None:
    wanted = (shop / STOCK).read_text().replace("level < limit", "level <= limit")
    result = asyncio.run(fix(shop, proposing(REORDER, {"needs_reorder": [RIGHT]}), in_place=True))
    assert result.code == Exit.OK, result.summary
    assert (shop / STOCK).read_text() == wanted
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=shop, capture_output=True, text=True).stdout
    assert changed.split() == ["M", STOCK]


def test_in_place_refuses_a_file_with_changes_of_the_person(shop: Path, fix: Run, proposing: Any) -> None:
    mine = (shop / STOCK).read_text() + "# mine\n"
    (shop / STOCK).write_text(mine)
    result = asyncio.run(fix(shop, proposing(REORDER, {"needs_reorder": [RIGHT]}), in_place=True))
    assert result.code == Exit.USAGE
    assert STOCK in result.summary
    assert (shop / STOCK).read_text() == mine


def test_commit_makes_a_branch_and_touches_nothing_else(shop: Path, fix: Run, proposing: Any) -> None:
    (shop / "notes.txt").write_text("not tracked\n")
    model = proposing(REORDER, {"needs_reorder": [RIGHT]})
    result = asyncio.run(fix(shop, model, commit=True))

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=shop, check=True, capture_output=True, text=True).stdout.strip()

    assert result.report["delivery"]["branch"] == "m3/issue-1"
    assert git("branch", "--show-current") == "main"
    assert git("status", "--porcelain") == "?? notes.txt"
    assert git("diff", "--name-only", "main", "m3/issue-1") == STOCK
    assert git("log", "-1", "--format=%s", "m3/issue-1").startswith("fix: An item at its limit")


def test_a_folder_without_git_is_repaired_in_a_copy(shop: Path, fix: Run, proposing: Any, tmp_path: Path) -> None:
    (shop / ".git").rename(tmp_path / "elsewhere")
    result = asyncio.run(fix(shop, proposing(REORDER, {"needs_reorder": [RIGHT]})))
    assert result.code == Exit.OK, result.summary


def test_rankings_are_fused_to_shares_of_one() -> None:
    first, second, third = ("a.py", "f"), ("a.py", "g"), ("b.py", "h")
    shares = {
        thing: math.exp(score) for thing, score in fused_log_shares([first, second], [second, first, third]).items()
    }
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares[first] == pytest.approx(shares[second])
    assert shares[third] == min(shares.values())


def test_mutations_that_the_model_ranks_take_turns_with_what_it_wrote(shop: Path, fix: Run, proposing: Any) -> None:
    class Ranking(proposing):  # type: ignore[misc]
        """Scores every proposal, the right one best, as a local engine would."""

        async def stream(self, messages: Any, tools: Any, options: Options) -> Any:
            async for event in super().stream(messages, tools, options):
                if isinstance(event, Finished):
                    for i, arguments in enumerate(options.proposed):
                        call = ToolCall(id=f"p{i}", name=options.tool_choice, arguments=arguments)
                        score = -3.0 if arguments["text"] == RIGHT[2] else -30.0 - i
                        yield CandidateReady(call=call, score=score, proposed=True)
                yield event

    written = [NEVER, *(("replace", "L2|", f"    return level <= limit - {n}", -9.0 - n) for n in range(1, 6))]
    result = asyncio.run(fix(shop, Ranking(REORDER, {"needs_reorder": written})))
    assert result.code == Exit.OK
    # Two of its own, then the best of the ranked ones, which repairs.
    assert [event.verdict for event in tried(result)] == ["still_failing", "still_failing", "fixed"]


def test_a_repair_that_passes_by_chance_is_none(tmp_path: Path, fix: Run, commit: Any, proposing: Any) -> None:
    """The order of a set of strings differs from run to run; about every second run has the right one."""
    repo = tmp_path / "unique"
    for name, text in {
        "shop/__init__.py": "",
        "shop/names.py": "def unique(names):\n    return list\n",
        "tests/__init__.py": "",
        "tests/test_names.py": (
            "import unittest\n\nfrom shop.names import unique\n\n\nclass NamesTest(unittest.TestCase):\n"
            "    def test_order(self):\n        self.assertEqual(unique(['b', 'a', 'b']), ['b', 'a'])\n"
        ),
        "issues/1.md": "# unique gives no list of names\n\nIt should give each name once, in order.\n",
    }.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=repo, check=True)
    commit(repo)
    by_chance = ("replace", "L2|", "    return list(set(names))", -1.0)
    right = ("replace", "L2|", "    return list(dict.fromkeys(names))", -2.0)
    model = proposing([("shop/names.py", "unique", -0.1)], {"unique": [by_chance, right]})
    result = asyncio.run(fix(repo, model))
    assert result.code == Exit.OK, result.summary
    assert "dict.fromkeys" in result.report["diff"]
