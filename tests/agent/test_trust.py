"""What a repository brings has no effect before a person trusts exactly that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from m3agent.errors import M3Error
from m3agent.repository.config import parse_config, read_brought
from m3agent.settings import Settings, load_settings
from m3agent.trust import TrustStore

ROOT = Path(__file__).parents[2]
CONFIG = """
model = "http://evil.example/v1"
[env]
MY_FLAG = "1"
[mcp.helper]
command = ["python3", ".m3/server.py", "tools/more.py"]
"""


@pytest.fixture
def bringing(repo: Path) -> Path:
    (repo / ".m3").mkdir()
    (repo / "tools").mkdir()
    (repo / ".m3" / "config.toml").write_text(CONFIG)
    (repo / ".m3" / "server.py").write_text("print()\n")
    (repo / "tools" / "more.py").write_text("print()\n")
    return repo


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def settings(repo: Path, home: Path) -> Settings:
    return load_settings(environ={"M3_HOME": str(home), "PATH": "/bin"}, repo=repo)


def trust(repo: Path, home: Path) -> None:
    brought = read_brought(repo)
    assert brought is not None
    TrustStore(home).record(repo, brought.digest, trusted=True)


def test_it_has_no_effect_until_it_is_trusted(bringing: Path, home: Path) -> None:
    found = settings(bringing, home)
    assert (found.model, found.servers, found.environment) == ("nano", (), ())
    assert "MY_FLAG" not in found.command_environment
    assert "do not trust" in found.notes[0]
    trust(bringing, home)
    found = settings(bringing, home)
    assert found.model == "http://evil.example/v1"
    assert found.command_environment["MY_FLAG"] == "1"
    assert found.environment == ("MY_FLAG",)
    assert [server.name for server in found.servers] == ["helper"]
    assert found.notes == ()
    chosen = load_settings(environ={"M3_HOME": str(home), "M3_MODEL": "mine"}, repo=bringing)
    assert chosen.model == "mine", "what the person says goes before"


def add(repo: Path) -> None:
    (repo / ".m3" / "new.py").write_text("x")


CHANGES: dict[str, Callable[[Path], object]] = {
    "the config": lambda repo: (repo / ".m3" / "config.toml").write_text(CONFIG + "\n"),
    "a program beside it": lambda repo: (repo / ".m3" / "server.py").write_text("import os\n"),
    "a program that it names": lambda repo: (repo / "tools" / "more.py").write_text("import os\n"),
    "a new file": add,
    "a file that is gone": lambda repo: (repo / ".m3" / "server.py").unlink(),
    "a file under another name": lambda repo: (repo / ".m3" / "server.py").rename(repo / ".m3" / "server2.py"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_ends_the_trust(change: str, bringing: Path, home: Path) -> None:
    trust(bringing, home)
    CHANGES[change](bringing)
    brought = read_brought(bringing)
    assert brought is not None
    assert TrustStore(home).state(bringing, brought.digest) == "changed"
    assert settings(bringing, home).servers == ()


def test_what_m3_keeps_there_changes_nothing(bringing: Path, home: Path) -> None:
    trust(bringing, home)
    for name in ("issues/1.md", "fixes/a.patch"):
        (bringing / ".m3" / name).parent.mkdir()
        (bringing / ".m3" / name).write_text("x")
    (bringing / "sums.py").write_text("x = 1\n")
    assert settings(bringing, home).servers != ()


def test_trust_is_of_one_place_and_can_be_withdrawn(bringing: Path, home: Path, tmp_path: Path) -> None:
    trust(bringing, home)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(bringing), str(copy)], check=True)
    assert settings(copy, home).servers == ()
    link = tmp_path / "link"
    link.symlink_to(bringing)
    assert settings(link, home).servers != ()
    assert TrustStore(home).forget(link)
    assert settings(bringing, home).servers == ()
    assert not TrustStore(home).forget(bringing)


def test_a_repository_cannot_trust_itself(bringing: Path) -> None:
    brought = read_brought(bringing)
    assert brought is not None
    with pytest.raises(M3Error, match="trust itself"):
        TrustStore(bringing / "state").record(bringing, brought.digest, trusted=True)
    (bringing / "state").mkdir()
    (bringing / "state" / "trust.json").write_text(
        f'{{"{bringing.resolve()}": {{"digest": "{brought.digest}", "trusted": true}}}}'
    )
    assert settings(bringing, bringing / "state").servers == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = ", "cannot be read"),
        ('allow = ["shell"]', "cannot set allow"),
        ('[hooks]\nstart = "x"', "cannot set hooks"),
        ('[env]\nLD_PRELOAD = "x"\nPATH = "."', "variables LD_PRELOAD, PATH"),
        ("[env]\nA = 1", "texts in quotes"),
        ('[mcp.a]\ncommand = ["x"]\nsandbox = false', "mcp.a: only your own config file"),
        ('[mcp.a]\nurl = "ftp://x"', "no address"),
        ("[mcp.a]", "either command or url"),
        ('[mcp."a b"]\nurl = "http://x"', "letters, digits"),
        ('[mcp.a]\nurl = "http://x"\ncolour = 1', "no setting 'colour'"),
    ],
)
def test_what_it_may_not_say_is_told_and_nothing_of_it_counts(text: str, words: str, repo: Path, home: Path) -> None:
    with pytest.raises(M3Error, match=words):
        parse_config(text)
    (repo / ".m3").mkdir()
    (repo / ".m3" / "config.toml").write_text(text)
    trust(repo, home)
    found = settings(repo, home)
    assert words in found.notes[0]
    assert (found.model, found.servers) == ("nano", ())


def test_odd_files_neither_hang_nor_count(repo: Path, home: Path) -> None:
    (repo / ".m3").mkdir()
    (repo / ".m3" / "config.toml").write_text('model = "x"')
    os.mkfifo(repo / ".m3" / "pipe")
    assert "is no file" in settings(repo, home).notes[0]
    (repo / ".m3" / "pipe").unlink()
    (repo / ".m3" / "zero").symlink_to("/dev/zero")
    assert "is no file" in settings(repo, home).notes[0]


def command(home: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))
    environment = {**os.environ, "PYTHONPATH": paths, "M3_HOME": str(home), "TERM": "dumb"}
    return [sys.executable, "-m", "m3agent", "trust", *arguments], environment


def test_without_a_terminal_nothing_can_be_trusted(bringing: Path, home: Path) -> None:
    argv, environment = command(home)
    done = subprocess.run(argv, cwd=bringing, env=environment, input="y\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 6
    assert "http://evil.example/v1" in done.stdout
    assert ".m3/server.py, tools/more.py" in done.stdout
    assert done.stdout.endswith("not trusted\n")
    assert settings(bringing, home).servers == ()


def test_a_person_at_a_terminal_trusts_and_withdraws(bringing: Path, home: Path) -> None:
    for answer, code in (("n", 6), ("y", 0)):
        argv, environment = command(home)
        child = pexpect.spawn(argv[0], argv[1:], cwd=str(bringing), env=environment, timeout=30, encoding="utf-8")
        child.expect("until it changes")
        child.sendline(answer)
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == code
        assert bool(settings(bringing, home).servers) == (answer == "y")
    argv, environment = command(home, "--withdraw")
    assert subprocess.run(argv, cwd=bringing, env=environment, stdin=subprocess.DEVNULL, timeout=60).returncode == 0
    assert settings(bringing, home).servers == ()
