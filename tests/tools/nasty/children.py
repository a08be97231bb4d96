"""Fifty commands that would wait, stay, or flood. A person reads the table; `worker.py` runs it.

`{s}` is a number of seconds by which everything that a command leaves can be told from the rest of the machine.
`IN_SANDBOX` are those that only a process namespace holds; the others run without a boundary, where it is hardest.
"""

from __future__ import annotations

import os

DEAF = (
    "import ctypes, os, signal, subprocess, sys, time\nfor n in range(1, 65):\n try: signal.signal(n, 1)\n except: 0\n"
)
"""Python that ignores every signal that can be ignored."""
LESSER = "setpriv --reuid=65534 --regid=65534 --clear-groups" if os.geteuid() == 0 else ""
"""No limit on processes holds root."""


def python(code: str) -> str:
    """The code as a command. It must have no apostrophe."""
    return f"python3 -c '{DEAF}{code}'"


STAYING = {
    "ignores every signal": python("time.sleep({s})"),
    "a child that ignores every signal": python("time.sleep({s})") + " & exit 0",
    "ignores TERM, INT and HUP in a shell": "trap '' TERM INT HUP; while :; do sleep {s}; done",
    "answers TERM with a new child": "trap 'sleep {s} & sleep {s}' TERM; sleep {s} & wait",
    "a daemon": "setsid sh -c 'exec sleep {s}' </dev/null >/dev/null 2>&1 & sleep {s}",
    "a daemon that ignores TERM": "(setsid bash -c 'trap \"\" TERM HUP; sleep {s}; sleep {s}' &) ; sleep {s}",
    "a daemon after the shell has ended": "setsid sleep {s} </dev/null >/dev/null 2>&1 & exit 0",
    "forked twice, in /, every descriptor closed": python(
        "if os.fork(): time.sleep({s})\nos.setsid()\nif os.fork(): os._exit(0)\nos.chdir(\"/\"); os.closerange(0, 99)\n"
        'os.execvp("sleep", ["sleep", "{s}"])'
    ),
    "a new session at each of six forks": python(
        'for n in range(6):\n if os.fork(): os._exit(0)\n os.setsid()\nos.execvp("sleep", ["sleep", "{s}"])'
    ),
    "nohup": "nohup sleep {s} > /dev/null 2>&1 & exit 0",
    "disown": "sleep {s} & disown -a; exec true",
    "jobs in groups of their own": "set -m; sleep {s} & sleep {s} & sleep {s}",
    "another name": "bash -c 'exec -a sshd sleep {s}' & sleep {s}",
    "no name at all": "bash -c 'exec -a \"\" sleep {s}' & exit 0",
    "an emptied environment in the same session": "env -i sleep {s} & exit 0",
    "an emptied environment under a living parent": "env -i setsid -w sleep {s} & sleep {s}",
    "made by vfork": python('os.posix_spawnp("sleep", ["sleep", "{s}"], os.environ, setsid=True)'),
    "a coprocess": "coproc sleep {s}; exit 0",
    "a shell of a pseudo-terminal": python('import pty; pty.spawn(["sleep", "{s}"])'),
    "leads a terminal of its own": python(
        'import pty\npid, fd = pty.fork()\nif pid == 0: os.execvp("sleep", ["sleep", "{s}"])\nos._exit(0)'
    ),
    "a user namespace": "unshare -Ur sleep {s} & sleep {s}",
    "a process namespace": "unshare -Urpf --kill-child=CONT sleep {s} & sleep {s}",
}  # fmt: skip
STOPPED = {
    "stops itself": "kill -STOP $$; sleep {s}",
    "stops its whole group": "sleep {s} & kill -STOP 0",
    "a stopped child holds the pipe": "sleep {s} & kill -STOP $!; exit 0",
    "stopped under ptrace": python(
        "if os.fork(): time.sleep({s})\nctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19); time.sleep({s})"
    ),
    "a child that nobody waits for": python("if os.fork() == 0: os._exit(0)\ntime.sleep({s})"),
}  # fmt: skip
MULTIPLYING = {
    "a fork bomb under a limit": (
        LESSER + " bash -c 'ulimit -u 80; b() {{ sleep {s} & b | b & }}; b; sleep {s}'"
    ),
    "a bomb that ends at 128": "b() {{ if [ $1 -gt 0 ]; then b $(($1 - 1)) & b $(($1 - 1)) & fi; sleep {s}; }}; b 6",
    "children that make the next and end": "f() {{ (sleep {s} &) ; sleep 0.02; f; }}; f",
    # Nothing but the tool under test can stop it: should that be killed, it ends by itself.
    "a process that replaces itself by its child": python(
        "n = time.time() + min({s}, 30)\nwhile time.time() < n:\n if os.fork(): os._exit(0)\n os.setsid()"
    ),
    "two that start each other anew": (
        "cat > w.sh <<'END'\nwhile :; do sleep {s} & c=$!; wait $c; bash w.sh & done\nEND\nbash w.sh & bash w.sh & wait"
    ),
    "a tree of depth 20": "f() {{ if [ $1 -gt 0 ]; then (f $(($1 - 1))) & fi; sleep {s}; }}; f 20",
    "a hundred at once": "for n in {{1..100}}; do sleep {s} & done; wait",
    "one short process after another": "while :; do /bin/true {s}; done",
    "executes itself without end": "export X='exec bash -c \"$X\"'; exec bash -c \"$X\" {s}",
    "threads that burn": python(
        "import threading\nfor n in range(8): threading.Thread(target=lambda: sum(iter(int, 1))).start()  # {s}"
    ),
}  # fmt: skip
WAITING = {
    "reads its input": "cat; read x; exec sleep {s}",
    "asks for a password": "python3 -c 'import getpass; getpass.getpass()'; sleep {s}",
    "opens the terminal": "exec 3</dev/tty || exec 3</dev/null; read x <&3; sleep {s}",
    "takes any terminal it finds": python(
        "import fcntl\nfor n in range(9):\n try: fcntl.ioctl(n, 0x540E, 1)\n except OSError: 0\ntime.sleep({s})"
    ),
    "a named pipe without a writer": "mkfifo pipe; cat pipe; sleep {s}",
    "a lock that its child holds": "exec 9> lock; flock 9; (sleep {s}) & flock lock true",
    "a folder that is gone": "mkdir d; cd d; rmdir ../d; (setsid sleep {s} &); sleep {s}",
}  # fmt: skip
HOLDING = {
    "a child holds the pipe": "sleep {s} & exit 0",
    "a grandchild in its own session holds it": "(setsid sleep {s} &) ; exit 0",
    "only stderr is held": "sleep {s} > /dev/null & exit 0",
    "every descriptor closed": "exec 0<&- 1>&- 2>&-; sleep {s}",
    "late words of a daemon": "(setsid bash -c 'while :; do echo late; sleep 0.05; done' {s} &) ; exit 0",
}  # fmt: skip
FLOODING = {
    "a gigabyte": "head -c 1073741824 /dev/zero; sleep {s}",
    "no line ends": "yes | tr -d '\\n'; : {s}",
    "invalid UTF-8": "yes $'\\xff\\xfe\\xc3'; : {s}",
    "NUL": "cat /dev/zero; : {s}",
    "carriage returns alone": "yes 12% | tr '\\n' '\\r'; : {s}",
    "escape sequences that never end": "yes $'\\e]0;\\e[1;' | tr -d '\\n'; : {s}",
    "one byte at a time": python("while True: os.write(1, b\"x\")  # {s}"),
    "both streams at once": "yes >&2 & yes; : {s}",
    "floods and ignores TERM": "trap '' TERM; yes {s}",
    "a daemon that floods": "setsid yes {s} & sleep 0.1",
}  # fmt: skip
IN_SANDBOX = {
    "a daemon with an emptied environment": "(env -i setsid sleep {s} &) ; exit 0",
    "the same, without any output": "( ( env -i setsid sleep {s} </dev/null >/dev/null 2>&1 & ) & ) & sleep 0.1",
}
WITHOUT = {**STAYING, **STOPPED, **MULTIPLYING, **WAITING, **HOLDING, **FLOODING}
CHILDREN = {**WITHOUT, **IN_SANDBOX}
"""Each command by its name."""
