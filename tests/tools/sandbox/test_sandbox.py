"""What a sandbox lets through, what it leaves behind, and what is said where none works."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import m3_tools
from m3_tools.process import ProcessResult, run_process
from m3_tools.sandbox import (
    BACKENDS,
    Backend,
    Detection,
    Limits,
    Policy,
    Sandbox,
    SandboxError,
    Trial,
    confined,
    detect,
    try_backend,
    work_tree_policy,
)
from m3_tools.sandbox.landlock import landlock_abi
from m3_tools.sandbox.seatbelt import profile

FOUND = detect(all_backends=True)
WORKING = [trial.backend for trial in FOUND.trials if trial.works]
WITHOUT = Backend(name="none", command=lambda argv, policy: list(argv))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder.resolve()


@pytest.fixture(params=WORKING or [None], ids=lambda backend: backend.name if backend else "none")
def sandbox(request: pytest.FixtureRequest, root: Path) -> Sandbox:
    if request.param is None:
        pytest.skip(FOUND.reason())
    readable = (Path(sys.prefix), Path(sys.base_prefix))
    return Sandbox(request.param, work_tree_policy(root, readable=readable))


def run(sandbox: Sandbox, script: str, *, timeout_s: float = 20, **environment: str) -> ProcessResult:
    root = sandbox.policy.writable[0]
    given = {**os.environ, "PY": sys.executable, "PYTHON_HERE": sys.executable, **environment}
    with sandbox.confine(["bash", "-c", script], given) as inside:
        return asyncio.run(run_process(inside.argv, cwd=root, environment=inside.environment, timeout_s=timeout_s))


def test_the_work_of_a_developer_works(sandbox: Sandbox, root: Path) -> None:
    script = """set -e
    mkdir -p src && echo 'x = 1' > src/a.py && mv src/a.py src/b.py && ln -s b.py src/c.py && ln src/b.py src/d.py
    git add -A && git -c user.name=a -c user.email=a@example.com commit -qm first && git stash list
    git status --porcelain; git log --format=%s; git diff HEAD; echo temporary > /tmp/x; cat /tmp/x
    echo words > /dev/null; echo loud > /dev/stderr; cat <<< here; diff <(echo a) <(echo a)
    $PYTHON_HERE -c 'import socket, threading
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
import multiprocessing, tempfile, pty
multiprocessing.Semaphore(); tempfile.TemporaryFile(); pty.openpty(); print("python")'
    pwd"""
    result = run(sandbox, script)
    assert result.exit_code == 0, result.text
    assert result.text.split() == ["first", "temporary", "loud", "here", "python", str(root)]
    assert sorted(path.name for path in (root / "src").iterdir()) == ["b.py", "c.py", "d.py"]


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("nothing-of-that-name", 127)])
def test_exit_codes_come_through(sandbox: Sandbox, script: str, code: int) -> None:
    assert run(sandbox, script).exit_code == code


def test_a_deadline_ends_everything_inside(sandbox: Sandbox) -> None:
    result = run(sandbox, "trap '' TERM; sleep 300 & sleep 300", timeout_s=0.5)
    assert result.timed_out
    assert result.duration_s < 10


def test_a_command_ends_with_the_program_that_started_it(sandbox: Sandbox, root: Path) -> None:
    seconds = f"600.{time.time_ns()}"
    with sandbox.confine(["bash", "-c", f"touch started; sleep {seconds}"], os.environ) as inside:
        starter = "import subprocess, sys; subprocess.run(sys.argv[1:])"
        program = subprocess.Popen([sys.executable, "-c", starter, *inside.argv], cwd=root, env=inside.environment)
        deadline = time.monotonic() + 20
        while not (root / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        program.kill()
        program.wait()
        while any(seconds in (p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_program_that_is_killed_leaves_no_file(sandbox: Sandbox, root: Path, tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys\n"
        "from m3_tools.sandbox import BACKENDS, Sandbox, work_tree_policy\n"
        "backend = {b.name: b for b in BACKENDS}[sys.argv[1]]\n"
        "with Sandbox(backend, work_tree_policy(sys.argv[2])).confine(['echo', 'inside'], os.environ) as inside:\n"
        "    subprocess.run(inside.argv, env=inside.environment)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    tools = Path(m3_tools.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(tools), "TMPDIR": str(scratch)}
    argv = [sys.executable, "-c", code, sandbox.backend.name, str(root)]
    done = subprocess.run(argv, env=environment, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == -9
    assert done.stdout == "inside\n", done.stderr
    assert list(scratch.iterdir()) == []


def test_only_known_variables_without_secrets_go_inside(sandbox: Sandbox) -> None:
    text = run(sandbox, "env", LC_ALL="C", MY_SETTING="1", PYTHON_API_KEY="k", CARGO_REGISTRY_TOKEN="t").text
    names = {line.partition("=")[0] for line in text.splitlines()}
    assert {"PATH", "HOME", "LC_ALL", "TMPDIR"} <= names
    assert not {"MY_SETTING", "PYTHON_API_KEY", "CARGO_REGISTRY_TOKEN"} & names


def test_what_did_not_exist_leaves_no_trace(sandbox: Sandbox, root: Path) -> None:
    before = sorted(root.rglob("*"))
    status = run(sandbox, "git status --porcelain; ls -d .claude .git/commondir").text
    assert status.split() == [".claude", ".git/commondir"], "git must not see a placeholder"
    assert sorted(root.rglob("*")) == before


def test_placeholders_of_a_killed_run_are_removed_by_the_next(sandbox: Sandbox, root: Path) -> None:
    (root / ".claude").mkdir(mode=0o555)
    (root / ".git" / "commondir").write_text(".\n")
    (root / ".git" / "commondir").chmod(0o444)
    run(sandbox, "true")
    assert not (root / ".claude").exists()
    assert not (root / ".git" / "commondir").exists()


def test_a_second_command_keeps_the_placeholders_of_both(sandbox: Sandbox, root: Path) -> None:
    with sandbox.confine(["true"], {}):
        run(sandbox, "true")
        assert (root / ".claude").is_dir()
    assert not (root / ".claude").exists()


def test_what_the_person_keeps_there_stays(sandbox: Sandbox, root: Path) -> None:
    (root / ".claude").mkdir()
    (root / ".vscode").mkdir()
    (root / ".vscode" / "settings.json").write_text("{}")
    run(sandbox, "rm -rf .claude .vscode; echo x > .vscode/settings.json")
    assert (root / ".claude").is_dir()
    assert (root / ".vscode" / "settings.json").read_text() == "{}"


def test_a_protected_symlink_is_put_back(sandbox: Sandbox, root: Path) -> None:
    (root / ".claude").symlink_to("elsewhere")
    run(sandbox, "rm .claude; mkdir .claude; echo x > .claude/settings.json")
    assert os.readlink(root / ".claude") == "elsewhere"


def test_a_folder_without_git_gets_none(sandbox: Sandbox, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    plain = Sandbox(sandbox.backend, work_tree_policy(folder))
    assert run(plain, "git init -q .; mkdir .git; echo x > .git/config; echo y > new").exit_code == 0
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_tmp_lasts_from_one_command_to_the_next(sandbox: Sandbox, root: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    lasting = Sandbox(sandbox.backend, work_tree_policy(root, scratch=scratch))
    run(lasting, "echo kept > /tmp/x")
    assert run(lasting, "cat /tmp/x; touch /tmp/y").text == "kept\n"
    assert sorted(path.name for path in scratch.iterdir() if path.is_file()) == ["x", "y"]


def test_a_command_that_writes_or_takes_too_much_fails_alone(sandbox: Sandbox, root: Path) -> None:
    limits = Limits(memory_bytes=2**28, file_bytes=2**20)
    policy = Policy(writable=sandbox.policy.writable, protected=(), readable=sandbox.policy.readable, limits=limits)
    limited = Sandbox(sandbox.backend, policy)
    assert run(limited, "head -c 3000000 /dev/zero > big").exit_code != 0
    assert (root / "big").stat().st_size <= 2**20
    result = run(limited, "$PYTHON_HERE -c 'x = bytearray(2**29)'")
    assert result.exit_code != 0
    assert "MemoryError" in result.text
    assert run(limited, "ulimit -c; ulimit -u").text.split() == ["0", "4096"]


@pytest.mark.skipif(landlock_abi() < 1, reason="no Landlock")
def test_landlock_is_a_second_wall(sandbox: Sandbox) -> None:
    """No mount forbids this write, so Landlock alone can."""
    result = run(sandbox, "echo x > /proc/self/comm")
    assert (result.exit_code != 0) == (sandbox.backend.name == "landlock"), result.text


def test_a_network_is_there_only_when_asked_for(sandbox: Sandbox, root: Path) -> None:
    script = "readlink /proc/self/ns/net"
    own = os.readlink("/proc/self/ns/net") if sys.platform == "linux" else ""
    assert run(sandbox, script).text.strip() != own
    shared = Sandbox(sandbox.backend, work_tree_policy(root, network=True))
    assert run(shared, script).text.strip() == own


def test_a_backend_that_lets_anything_through_is_found_out() -> None:
    found = try_backend(WITHOUT)
    assert not found.works
    for way in ("write outside", "write protected", "TCP to this machine", "unix socket"):
        assert way in found.reason


def test_a_backend_that_fails_says_why_on_one_line() -> None:
    def refuse(argv: object, policy: object) -> list[str]:
        raise SandboxError("it is not installed")

    for backend, reason in (
        (Backend(name="a", command=refuse), "it is not installed"),
        (Backend(name="b", command=lambda argv, policy: ["sh", "-c", "echo one >&2; echo why >&2; exit 3"]), "why"),
        (Backend(name="c", command=lambda argv, policy: ["/no/such/program"]), "No such file"),
    ):
        found = try_backend(backend)
        assert not found.works
        assert reason in found.line()
        assert "\n" not in found.line()


def test_the_first_backend_that_works_is_chosen_and_others_give_their_reasons() -> None:
    good, bad = (Trial(backend=backend, works=backend is WITHOUT, reason="r") for backend in (WITHOUT, BACKENDS[0]))
    assert Detection(trials=(bad, good)).backend is WITHOUT
    nothing = Detection(trials=(bad, bad))
    assert nothing.backend is None
    assert nothing.reason() == "bubblewrap: r; bubblewrap: r"


def test_without_a_sandbox_a_command_is_as_it_was() -> None:
    with confined(None, ["a", "b"], {"MY": "1"}) as inside:
        assert (inside.argv, inside.environment) == (["a", "b"], {"MY": "1"})


def test_a_policy_takes_absolute_paths_only() -> None:
    with pytest.raises(ValueError, match="not absolute"):
        Policy(writable=(Path("here"),))


def test_the_profile_for_macos_allows_and_denies_in_the_right_order(tmp_path: Path) -> None:
    work = tmp_path / 'a "quoted" name'
    policy = Policy(writable=(work,), protected=(work / ".git" / "hooks",), hidden=(tmp_path / ".ssh",))
    lines = profile(policy).splitlines()
    assert lines[:2] == ["(version 1)", "(deny default)"]
    allowed = lines.index(f'(allow file-write* (subpath "{tmp_path}/a \\"quoted\\" name"))')
    denied = lines.index(f'(deny file-write* (subpath "{tmp_path}/a \\"quoted\\" name/.git/hooks"))')
    assert allowed < denied
    assert any(line.startswith("(deny file-write-unlink") and line.endswith('/.git"))') for line in lines)
    assert lines[-1] == "(deny network-outbound)"
    assert all(line.count("(") == line.count(")") for line in lines)
    assert profile(Policy(writable=(work,), network=True)).splitlines()[-1] == "(allow network*)"
