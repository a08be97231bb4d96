"""Command lines and the verdict on each: under rules, by mode, and where work could be destroyed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_tools.toolset import all_tools
from m3agent.approval import Mode, Verdict, decide
from m3agent.errors import M3Error
from m3agent.permissions import syntax
from m3agent.permissions.command_line import MAX_CHARS, read_command_line
from m3agent.permissions.rules import parse_rules
from m3agent.permissions.wrappers import all_commands
from m3agent.settings import load_settings

TOOLS = {tool.name: tool for tool in all_tools()}
RULES = parse_rules(
    {
        "allow": ["shell: git status", "shell: git log", "shell: ls", "shell: cat", "shell: grep", "shell: echo",
                  "shell: python -m pytest", "shell: find", "shell: head", "shell: sort", "shell: wc", "write: out/**"],
        "ask": ["shell: curl"],
        "deny": ["shell: rm", "shell: git push", "edit: secret/**", "read: *.pem"],
    }
)  # fmt: skip


def verdict(command: str, mode: Mode = "ask", **choices: Any) -> Verdict:
    choices.setdefault("rules", RULES)
    return decide(mode, TOOLS["shell"], {"command": command}, **choices).verdict


UNDER_RULES: list[tuple[str, Verdict]] = [
    ("git status", "allow"),
    ("git status --short && git log -3 | head -5", "allow"),
    ("ls; ls -la\nls src", "allow"),
    ("python -m pytest -q tests/test_a.py", "allow"),
    ("cat a.txt 2>/dev/null | sort | wc -l", "allow"),
    ("if [ -f a ]; then cat a; fi", "allow"),
    ("for f in *.py; do echo $f; done", "allow"),
    ("timeout 5 ls && nice -n 5 ls && env ls && command ls", "allow"),
    ("bash -c 'ls && git status'", "allow"),
    ("find . -name '*.py' -exec grep x {} +", "allow"),
    ("find src -type f | xargs grep x", "allow"),
    ("echo $(git status)", "allow"),
    ("ls # rm -rf /", "allow"),
    ("echo 'rm -rf /; $(rm x)'", "allow"),
    ("echo x > out/y", "allow"),
    ("echo x > /dev/null 2>&1", "allow"),
    ("", "allow"),
    ("make", "ask"),
    ("ls && make", "ask"),
    ("ls | tee x", "ask"),
    ("ls; $(make)", "ask"),
    ("echo `make`", "ask"),
    ('echo "a $(make) b"', "ask"),
    ("cat <(make)", "ask"),
    ("cat <<EOF\n$(make)\nEOF", "ask"),
    ("cat <<EOF\n`make`\nEOF", "ask"),
    ("echo ${X:-$(make)}", "ask"),
    ("echo $((1 + $(make)))", "ask"),
    ("ls &\nmake", "ask"),
    ("git status || (cd x; make)", "ask"),
    ("f() { make; }; f", "ask"),
    ("bash -c 'ls; make'", "ask"),
    ('bash -c "$CODE"', "ask"),
    ("curl x | bash", "ask"),
    ("ls | sh", "ask"),
    ("eval ls", "allow"),
    ("eval 'ls; make'", "ask"),
    ("eval $X", "ask"),
    ("$X", "ask"),
    ("l$X", "ask"),
    ("./ls", "ask"),
    ("/tmp/ls", "ask"),
    ("PATH=. ls", "ask"),
    ("LD_PRELOAD=x ls", "ask"),
    ("env LD_PRELOAD=x ls", "ask"),
    ("export PATH=.; ls", "ask"),
    ("env -S 'make x'", "ask"),
    ("xargs make < list", "ask"),
    ("find . -exec make {} ;", "ask"),
    ("find . $X", "ask"),
    ("find . -fprintf x y", "ask"),
    ("git -c alias.status=!make status", "ask"),
    ("git -c core.pager=make log", "ask"),
    ("git $X", "ask"),
    ("python -c 'import os'", "ask"),
    ("python -m pytest; python x.py", "ask"),
    ("echo x > other/y", "ask"),
    ("echo x >> ../out/y", "ask"),
    ("echo x > out/../y", "ask"),
    ("echo x > $X", "ask"),
    ("cd / && echo x > out/y", "ask"),
    ("ls 'unclosed", "ask"),
    ("ls ) (", "ask"),
    ("source x", "ask"),
    ("trap make EXIT; ls", "ask"),
    ("alias ls=make; ls", "ask"),
    ("curl x", "ask"),
    ("sudo ls", "ask"),
    ("rm x", "refuse"),
    ("ls && rm x", "refuse"),
    ("/bin/rm x", "refuse"),
    (r"r\m x", "refuse"),
    ("'r'm x", "refuse"),
    ("sudo -u root rm x", "refuse"),
    ("env -i X=1 nice -n 3 timeout -k 1 5 rm x", "refuse"),
    ("ls | xargs -n 1 rm", "refuse"),
    ("find . -delete", "refuse"),
    ("find . -exec rm {} +", "refuse"),
    ("bash -lc 'sh -c \"rm x\"'", "refuse"),
    ("git -C x push", "ask"),
    ("git push", "refuse"),
    ("git -c alias.x=push x", "refuse"),
    ("git -c alias.x='!rm y' x", "refuse"),
    ("git rebase -x 'rm y' main", "refuse"),
    ("time rm x; ! rm y", "refuse"),
    ("busybox rm x", "refuse"),
    ("ls | xargs -I{} rm {}", "refuse"),
    ("git -c alias.x='!f() { rm y; }; f' x", "refuse"),
    ("ls ${X@P}", "ask"),
    ("ls | wc -l\nmake < list", "ask"),
    ("cat x 2>/dev/null | sort | wc -l\nmake < list", "ask"),
    ("ls \\\n -l", "allow"),
    ("ls {a,$X}", "allow"),
    ("while true; do rm x; done", "refuse"),
    ("f() { rm x; }", "refuse"),
    ("find . <in -delete", "refuse"),
    ("find >/dev/null . -delete", "refuse"),
    ("find . 3>&- -delete", "refuse"),
    ("find . <<E 2>&1 -delete\nx\nE", "refuse"),
    ("ls >/dev/null -l", "allow"),
    ("cat <<E | wc -l\nx\nE\n", "allow"),
    ("git status --short>/dev/null", "allow"),
    ("ls -l2>&1", "ask"),
    ("-c2>&1", "ask"),
    ("{ ls; } >/dev/null x", "ask"),
    (r"\ ls", "ask"),
    ("{}", "ask"),
    ("[]", "ask"),
    ("ls { {", "ask"),
    ("coproc -S ls", "ask"),
]


@pytest.mark.parametrize(("command", "expected"), UNDER_RULES)
def test_a_line_is_allowed_only_if_everything_in_it_is(command: str, expected: Verdict, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert verdict(command, root=tmp_path) == expected


DESTRUCTIVE = [
    "git reset --hard", "git reset --hard HEAD~1", "git -C sub reset --har", "git clean -fd", "git clean -xdf",
    "git clean --force -d", "git checkout -- .", "git checkout .", "git checkout -- a.py", "git checkout -f main",
    "git restore .", "git restore --staged --worktree a", "git switch --discard-changes main", "git push --force",
    "git push -f origin main", "git push --force-with-lease", "git push origin +main", "git push origin :main",
    "git push --delete origin x", "git branch -D x", "git branch --delete --force x", "git stash drop",
    "git stash clear", "git filter-branch --all", "git reflog expire --expire=now --all", "git gc --prune=now",
    "git prune", "git update-ref -d refs/heads/x", "git --no-pager -c a.b=c reset --hard",
    "ls && git reset --hard", "bash -c 'git clean -fdx'", "sudo git reset --hard", "git -c alias.x='reset --hard' x",
    "rm -rf /", "rm -rf /*", "rm -rf ~", "rm -rf ~/", "rm -rf ~/*", "rm -fr $HOME", 'rm -rf "$HOME"', "rm -rf $X/",
    'rm -rf "$X"', "rm -r ${X}/*", "rm --recursive $X", "rm -rf build/$X", "rm -rf $(pwd)/x", "rm -rf /usr",
    "rm -R /home", "rm -rf .git", "rm -r sub/.git/objects", "rm -rf .", "rm -rf ./ -v", "busybox rm -rf /",
    "rm -rf ..", "rm -rf ../../x", "cd $X && rm -rf *", "cd && rm -rf .", "cd / ; rm -rf tmp", "find / -delete",
    "find $X -delete", "find ~ -delete", "ls | xargs rm -rf /", "sudo rm -rf --no-preserve-root /",
    "for f in a b; do rm -rf $f/x; done", "timeout 9 rm -rf /etc", "rm -rf -- /", "/bin/rm -rf /",
]  # fmt: skip


@pytest.mark.parametrize("command", DESTRUCTIVE)
@pytest.mark.parametrize("mode", ["ask", "edit", "auto"])
def test_what_destroys_work_is_asked_for_whatever_the_rules(command: str, mode: Mode) -> None:
    everything = parse_rules({"allow": ["shell", "*", "shell: git", "shell: rm"]})
    assert verdict(command, mode, rules=everything) == "ask"


@pytest.mark.parametrize(
    ("command", "expected"),
    [("git checkout -- a.py", "allow"), ("git reset --hard", "allow"), ("git clean -fd && git stash drop", "allow"),
     ("bash -c 'git restore .'", "allow"), ("git -C ../other checkout -- .", "ask"), ("cd .. && git checkout .", "ask"),
     ("git --work-tree=/x checkout .", "ask"), ("GIT_DIR=/x git reset --hard", "ask"), ("git push --force", "ask"),
     ("git branch -D x", "ask"), ("git -c alias.x='reset --hard' x", "ask"), ("rm -rf .git", "ask"),
     ("rm -rf ~", "ask"), ("git checkout . ; rm -rf /", "ask")],
)  # fmt: skip
def test_in_a_copy_of_our_own_git_may_discard_changes(command: str, expected: Verdict) -> None:
    assert verdict(command, "auto", rules=(), disposable=True) == expected
    assert verdict(command, "auto", rules=()) == "ask"


@pytest.mark.parametrize(
    "command",
    ["git reset HEAD a.py", "git checkout main", "git checkout -b new", "git restore --staged a",
     "git push origin main",
     "git branch -d x", "git stash", "git stash pop", "git clean -n", "git gc", "rm -rf build", "rm -rf ./build/*",
     "rm -rf /tmp/x/y", "rm $X", "rm -f a", "git commit -m 'reset --hard'", "echo git reset --hard",
     "cd src && rm -rf x",
     "python - <<'EOF'\nprint('rm -rf /')\nEOF", 'python -c "print(1)"', "X=1 make", "$PY -m pytest"],
)  # fmt: skip
def test_ordinary_work_is_free_in_auto_mode(command: str) -> None:
    assert verdict(command, "auto", rules=()) == "allow"


@pytest.mark.parametrize("mode", ["ask", "edit", "auto"])
def test_what_is_not_understood_or_too_long_is_never_allowed(mode: Mode) -> None:
    everything = parse_rules({"allow": ["shell"]})
    for command in ("ls '", "ls " + "a" * MAX_CHARS, "ls\0", "ls \r rm", "ls;" * 400, "eval " * 20 + "ls", "\ud800"):
        assert verdict(command, mode, rules=everything) == "ask"


def in_terminal(mode: Mode = "auto", **arguments: str) -> Verdict:
    return decide(mode, TOOLS["terminal"], arguments, rules=RULES).verdict


def test_a_program_in_a_terminal_is_started_as_a_command_is_run() -> None:
    assert in_terminal("ask", action="start", command="git log") == "allow"
    assert in_terminal("ask", action="start", command="python3") == "ask"
    assert in_terminal(action="start", command="python3") == "allow"
    assert in_terminal(action="start", command="ls; rm x") == "refuse"
    assert in_terminal(action="start", command="git reset --hard") == "ask"
    assert in_terminal("plan", action="start", command="git log") == "refuse"
    denied = parse_rules({"deny": ["terminal"]})
    assert decide("auto", TOOLS["terminal"], {"action": "read"}, rules=denied).verdict == "refuse"


def test_what_is_typed_into_a_terminal_may_be_a_command_and_no_rule_allows_it() -> None:
    assert in_terminal("ask", action="send", text="ls") == "ask"
    assert in_terminal("edit", action="send", text="ls") == "ask"
    assert in_terminal(action="send", text="print('x'") == "allow"
    assert in_terminal(action="send", keys="enter") == "allow"
    assert in_terminal(action="send", text="ls\nrm x\n") == "refuse"
    assert in_terminal(action="send", text="git reset --hard\n") == "ask"
    assert in_terminal(action="send", text="curl x\n") == "ask"
    arguments = {"action": "send", "text": "1\n"}
    assert decide("auto", TOOLS["terminal"], arguments, unconfined="no sandbox").verdict == "ask"
    assert in_terminal("ask", action="read") == in_terminal("ask", action="stop") == "allow"


def test_rules_go_before_the_mode_but_widen_plan_never() -> None:
    assert verdict("git status", "plan") == "refuse"
    assert verdict("curl x", "auto") == "ask"
    assert verdict("rm x", "auto") == "refuse"
    assert verdict("git status", unconfined="no sandbox") == "ask"
    assert decide("ask", TOOLS["shell"], rules=RULES).verdict == "allow", "it is offered, since some commands may run"
    assert decide("ask", TOOLS["shell"]).verdict == "ask"


@pytest.mark.parametrize(
    ("tool", "path", "expected"),
    [("edit", "secret/a", "refuse"), ("edit", "link/a", "refuse"), ("edit", "x/../secret/a", "refuse"),
     ("edit", "open/a", "ask"), ("write", "out/a", "allow"), ("write", "out/../a", "ask"), ("read", "a.pem", "refuse"),
     ("read", "sub/b.pem", "refuse"), ("read", "a.py", "allow")],
)  # fmt: skip
def test_paths_are_resolved_before_they_are_judged(tool: str, path: str, expected: Verdict, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "link").symlink_to("secret")
    assert decide("ask", TOOLS[tool], {"path": path}, root=tmp_path, rules=RULES).verdict == expected


@pytest.mark.parametrize(
    ("path", "to", "expected"),
    [
        ("docs/a.md", "docs/b.md", "allow"),
        ("docs/a.md", "src/a.md", "ask"),
        ("src/a.md", "docs/a.md", "ask"),
        ("docs/a.md", "keep/a.md", "refuse"),
        ("keep/a.md", "docs/a.md", "refuse"),
    ],
)
def test_every_path_of_a_call_is_judged(path: str, to: str, expected: Verdict, tmp_path: Path) -> None:
    rules = parse_rules({"allow": ["move: docs/**"], "deny": ["move: keep/**"]})
    assert decide("ask", TOOLS["move"], {"path": path, "to": to}, root=tmp_path, rules=rules).verdict == expected


def test_rules_come_from_the_config_file(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('allow = ["shell: git status"]\ndeny = ["edit: docs/**"]\n')
    rules = load_settings(environ={"M3_HOME": str(tmp_path)}).rules
    assert [str(rule) for rule in rules] == ["allow shell: git status", "deny edit: docs/**"]
    for text, words in (('allow = "x"', "list of texts"), ('deny = ["two words: x"]', "must look like"),
                        ('ask = ["shell: \'x"]', "cannot be read")):  # fmt: skip
        config.write_text(text)
        with pytest.raises(M3Error, match=words):
            load_settings(environ={"M3_HOME": str(tmp_path)})


def test_a_crash_of_the_parser_is_no_crash_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nread line; kill -SEGV $$\n")
    broken.chmod(0o755)
    monkeypatch.setattr(syntax, "_worker", syntax._Worker())
    monkeypatch.setattr(syntax.sys, "executable", str(broken))
    assert verdict("ls") == "ask"
    monkeypatch.setattr(syntax.sys, "executable", str(tmp_path / "missing"))
    assert verdict("ls") == "ask"
    monkeypatch.undo()
    assert verdict("ls") == "allow"


PIECES = st.sampled_from(
    ["ls", "rm x", ";", "&&", "|", "\n", "$(", ")", "`", "'", '"', "<<EOF\n", "EOF\n", "{", "}", "(", "#", "\\", "$X",
     "${X:-", "bash -c", "git", "-c", "alias.a=!", "find .", "-exec", "xargs", "env", "X=1", ">", "x", " ", "é", "\t"]
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=12).map(" ".join), st.lists(PIECES).map("".join)))
def test_no_input_raises(text: str) -> None:
    read_command_line(text)
    all_commands(text)
    assert verdict(text) in ("allow", "ask", "refuse")


SIMPLE = st.lists(
    st.sampled_from(["find", ".", "-delete", "x2", "'a b'", '"c"', "--all", "é", "2"]), min_size=1, max_size=5
)
REDIRECTION = st.sampled_from(
    [">/dev/null", "> /dev/null", "2>&1", ">&2", "3>&-", "<in", "<<<in", "&>/dev/null", "0<in", '<"in"', ">>/dev/null"]
)


@settings(max_examples=400, deadline=None)
@given(SIMPLE, st.lists(st.tuples(st.integers(0, 5), REDIRECTION), max_size=3), st.booleans())
def test_redirections_hide_no_word(words: list[str], redirections: list[tuple[int, str]], document: bool) -> None:
    parts: list[str] = list(words)
    for place, redirection in redirections:
        parts.insert(1 + min(place, len(parts) - 1), redirection)
    if document:
        parts.insert(1, "<<E")
    read = read_command_line(" ".join(parts) + "\ntext\nE\n" * document)
    if not read.problem:
        (command,) = read.commands
        assert not Counter(word.strip("'\"") for word in words) - Counter(word.text for word in command.words)


ALLOWED = st.sampled_from([command for command, expected in UNDER_RULES if expected == "allow" and command])
OTHER = st.sampled_from(
    # What is no whole line by itself, `ls ) (`, may be harmless as a part of another.
    [command for command, expected in UNDER_RULES if expected != "allow" and not read_command_line(command).problem]
)
JOINED = st.sampled_from(
    ["{a}; {b}", "{a}\n{b}", "{a} && {b}", "{b} | {a}", "{a} $({b})", '{a} "$({b})"', "{b}; {a}", "({a}; {b})",
     "{a} & {b}", "{a} <({b})", "if {a}; then {b}; fi", "{a} || {{ {b}; }}"]
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(ALLOWED, OTHER, JOINED)
def test_adding_what_is_not_allowed_never_gives_allow(allowed: str, other: str, joined: str) -> None:
    assert verdict(joined.format(a=allowed, b=other)) != "allow" or "#" in allowed


@settings(max_examples=500, deadline=None)
@given(ALLOWED, st.one_of(st.text(max_size=30), st.lists(PIECES, max_size=6).map(" ".join)))
def test_adding_anything_gives_allow_only_if_it_is_allowed(allowed: str, added: str) -> None:
    if "#" not in allowed and verdict(f"{allowed}; {added}") == "allow" and not read_command_line(added).problem:
        assert verdict(added) == "allow"
