"""The command line as a process: speed, exit codes, streams, signals, and other people's repositories."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from m3agent.messages import Message, ToolCall, assistant, message_to_json

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools")]


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{time.monotonic_ns()}", name=name, arguments=arguments)


def script(folder: Path, *turns: Message) -> str:
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(message_to_json(turn)) + "\n" for turn in turns))
    return f"scripted:{path}"


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("M3_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(PATHS), "M3_HOME": str(home), "OMP_NUM_THREADS": "1", **more}


def m3(home: Path, *arguments: str, cwd: Path, **choices: Any) -> subprocess.CompletedProcess[str]:
    choices.setdefault("stdin", subprocess.DEVNULL if "input" not in choices else None)
    command = [sys.executable, "-m", "m3agent", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(home), capture_output=True, text=True, timeout=60, check=False, **choices
    )


@pytest.fixture
def repair(tmp_path: Path) -> str:
    return script(
        tmp_path,
        assistant("I look.", reasoning="hm", calls=(call("read", path="sums.py"),)),
        assistant(calls=(call("edit", path="sums.py", old="a - b", new="a + b"),)),
        assistant(calls=(call("test"),)),
        assistant("The sum is *repaired*."),
    )


def children_cpu_s() -> float:
    """Processor seconds of all ended children: a start waits for nothing else, and a busy machine changes it little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_answer_at_once_without_heavy_imports(home: Path, tmp_path: Path, option: str) -> None:
    times = []
    for _ in range(5):
        start = children_cpu_s()
        assert m3(home, option, cwd=tmp_path).returncode == 0
        times.append(children_cpu_s() - start)
    assert min(times) < 0.2
    code = f"import sys; sys.argv = ['m3', {option!r}]\nfrom m3agent.cli import main\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    code += "print(sorted({'torch', 'pydantic', 'httpx', 'rich', 'numpy'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(home), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_listed_command_exists_and_has_help(home: Path, tmp_path: Path) -> None:
    from m3agent.cli import COMMANDS

    for name in COMMANDS:
        done = m3(home, name, "--help", cwd=tmp_path)
        assert (name, done.returncode, done.stderr) == (name, 0, "")
        assert f"m3 {name}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nothing"], 2, "No such command 'nothing'"),
        (["run"], 2, "Missing argument 'PROMPT'"),
        (["run", "x", "--repo", "/no/such"], 2, "does not exist"),
        (["run", "x", "--mode", "yolo"], 2, "yolo"),
        (["run", "x", "--max-steps", "0"], 2, "max-steps"),
        (["run", " "], 2, "the task is empty"),
        (["trust", "nonsense"], 2, "unexpected extra argument (nonsense). See `m3 trust --help`."),
        (["run", "x", "--model", "no-such-model"], 2, "there is no model 'no-such-model'"),
        (["run", "x", "--model", "MiniMaxAI/MiniMax-M3"], 2, "hub id"),
        (["run", "x", "--model", "http://127.0.0.1:9/v1"], 75, "is the server running"),
        (["run", "x", "--model", "scripted:/no/such"], 75, "no script"),
        (["sessions", "show", "1999"], 2, "there is no session"),
        (["chat", "--resume", "1999"], 2, "there is no session"),
    ],
)
def test_an_error_is_one_line_on_stderr_with_its_exit_code(
    home: Path, tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    done = m3(home, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert done.stderr.startswith("m3: ")
    assert done.stderr.count("\n") == 1


def test_run_does_the_task_and_stdout_carries_the_answer_alone(home: Path, repo: Path, repair: str) -> None:
    done = m3(home, "run", "repair add", "--model", repair, cwd=repo)
    assert (done.returncode, done.stdout) == (0, "The sum is *repaired*.\n")
    assert "a + b" in (repo / "sums.py").read_text()
    assert "1 passed" in done.stderr
    assert "changed: sums.py (m3 undo --request takes it back)" in done.stderr
    assert f"session: {home / 'sessions'}" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_json_output_is_one_object(home: Path, repo: Path, repair: str) -> None:
    done = m3(home, "run", "repair add", "--model", repair, "--output", "json", cwd=repo)
    result = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert (result["exit_code"], result["outcome"], result["steps"]) == (0, "answered", 4)
    assert Path(result["session"]).is_file()
    assert result["changed"] == ["sums.py"]


def test_stream_json_is_the_session_line_by_line(home: Path, repo: Path, repair: str) -> None:
    done = m3(home, "run", "repair add", "--model", repair, "--output", "stream-json", cwd=repo)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert (events[0]["kind"], events[-1]["kind"]) == ("run_started", "run_ended")
    saved = home / "sessions" / f"{events[0]['run_id']}.jsonl"
    assert [json.loads(line) for line in saved.read_text().splitlines()] == events


def test_a_saved_run_can_be_listed_shown_replayed_exported_and_removed(home: Path, repo: Path, repair: str) -> None:
    m3(home, "run", "repair add", "--model", repair, cwd=repo)
    listed = m3(home, "sessions", "list", cwd=repo).stdout
    assert "repair add" in listed
    run_id = listed.split()[0]
    shown = m3(home, "sessions", "show", run_id, cwd=repo).stdout
    assert "a + b" in shown
    assert m3(home, "replay", run_id[:18], cwd=repo).stdout == shown
    assert "**edit**" in m3(home, "sessions", "export", run_id, cwd=repo).stdout
    assert m3(home, "sessions", "rm", run_id, cwd=repo).returncode == 0
    assert m3(home, "sessions", "list", cwd=repo).stdout == ""


def test_what_needs_an_approval_ends_with_code_6(home: Path, repo: Path, tmp_path: Path) -> None:
    model = script(tmp_path, assistant(calls=(call("shell", command="touch made"),)), assistant("I need a command."))
    done = m3(home, "run", "x", "--model", model, cwd=repo)
    assert done.returncode == 6
    assert "an approval is needed for: shell" in done.stdout
    assert not (repo / "made").exists()


def test_a_budget_ends_with_code_5(home: Path, repo: Path, tmp_path: Path) -> None:
    model = script(tmp_path, *(assistant(calls=(call("glob", pattern="*"),)) for _ in range(5)))
    done = m3(home, "run", "x", "--model", model, "--max-steps", "2", cwd=repo)
    assert done.returncode == 5
    assert "limit of 2 steps" in done.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_kills_the_command_closes_the_session_and_gives_its_code(
    home: Path, repo: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    seconds = f"60.{time.time_ns()}"  # found by its command line: in a sandbox it has another number
    waiting = call("shell", command=f"echo > started; sleep {seconds}")
    model = script(tmp_path, assistant(calls=(waiting,)), assistant("never"))
    command = [sys.executable, "-m", "m3agent", "run", "x", "--mode", "auto", "--model", model, "--output", "json"]
    process = subprocess.Popen(
        command, cwd=repo, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 20
    while not (repo / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == code
    assert "Traceback" not in stderr
    assert json.loads(stdout)["exit_code"] == code
    assert not [p for p in psutil.process_iter(["cmdline"]) if seconds in (p.info["cmdline"] or ())]
    events = [json.loads(line) for line in next((home / "sessions").glob("*.jsonl")).read_text().splitlines()]
    assert events[-1]["kind"] == "run_ended"
    assert [e["message"]["role"] for e in events if e["kind"] == "message_added"][-2:] == ["assistant", "tool"]


def test_a_reader_that_leaves_is_no_error(home: Path, repo: Path, repair: str) -> None:
    command = f"{sys.executable} -m m3agent run x --model {repair} --output stream-json 2>err | head -n 1; cat err"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=repo,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert json.loads(done.stdout.splitlines()[0])["kind"] == "run_started"
    assert "Traceback" not in done.stdout
    assert "Exception" not in done.stdout


def test_modules_of_the_repository_are_never_imported(home: Path, repo: Path, repair: str) -> None:
    trap = "open('imported', 'a').write(__name__)\nraise SystemExit('shadowed')\n"
    for name in ("dataclasses.py", "json.py", "click.py", "asyncio.py", "rich.py", "m3_tools.py", "sitecustomize_.py"):
        (repo / name).write_text(trap)
    for name in ("tools", "model", "kernels", "runtime"):
        (repo / name).mkdir()
        (repo / name / "__init__.py").write_text(trap)
    for arguments in (["--version"], ["run", "x", "--mode", "plan", "--model", repair], ["sessions", "list"]):
        done = m3(home, *arguments, cwd=repo)
        assert done.returncode == 0, done.stderr
    assert not (repo / "imported").exists()


def test_chat_over_a_pipe_answers_every_line(home: Path, repo: Path, tmp_path: Path) -> None:
    model = script(tmp_path, assistant("First."), assistant("Second."))
    done = m3(home, "chat", "--model", model, cwd=repo, input="one\n/mode plan\n/nothing\ntwo\n/quit\nthree\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("First.") < done.stdout.index("the mode is now plan") < done.stdout.index("Second.")
    assert "there is no command /nothing" in done.stdout
    assert "--resume" in done.stdout


def test_a_chat_goes_on_where_it_ended(home: Path, repo: Path, tmp_path: Path) -> None:
    model = script(tmp_path, assistant("First."))
    m3(home, "chat", "--model", model, cwd=repo, input="one\n")
    run_id = m3(home, "sessions", "list", cwd=repo).stdout.split()[0]
    done = m3(home, "chat", "--resume", run_id, "--model", model, cwd=repo, input="again\n")
    assert done.returncode == 0, done.stderr
    text = m3(home, "sessions", "export", run_id, cwd=repo).stdout
    assert text.index("one") < text.index("First.") < text.index("again") < text.rindex("First.")


def test_undo_puts_back_what_the_last_request_changed(home: Path, repo: Path, tmp_path: Path) -> None:
    before = (repo / "sums.py").read_bytes()
    edit = call("edit", path="sums.py", old="a - b", new="a + b")
    new = call("write", path="new.py", content="x = 1\n")
    model = script(
        tmp_path, assistant(calls=(call("read", path="sums.py"),)), assistant(calls=(edit, new)), assistant("Done.")
    )
    done = m3(home, "chat", "--mode", "edit", "--model", model, cwd=repo, input="go\n/undo\n/undo\n")
    assert (repo / "sums.py").read_bytes() == before
    assert not (repo / "new.py").exists()
    assert "sums.py is as it was" in done.stdout
    assert "new.py was removed again" in done.stdout
    assert "there is nothing to undo" in done.stdout


def test_doctor_names_what_is_there(home: Path, tmp_path: Path) -> None:
    done = m3(home, "doctor", cwd=tmp_path)
    assert done.returncode in (0, 7)
    assert "git version" in done.stdout
    assert "ripgrep" in done.stdout
