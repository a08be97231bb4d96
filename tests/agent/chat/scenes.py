"""A conversation that shows the main views of the chat, step by step: for the golden screens and for the pictures."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from m3agent.messages import Message, ToolCall, assistant
from tests.agent.chat.terminal import Terminal
from tests.contracts.played_server import chunks

ANSWER = """The sum was a **difference**.

- repaired in `sums.py`
- see the [reference](https://docs.python.org/3/reference/)

```py
def add(a, b):
    return a + b
```

| before | after |
|---|---|
| `add(1, 2)` = -1 | 3 |
"""
SETTLES_S = 0.4
_SPINNER = re.compile(r"[\u2800-\u28ff]")
_CHANGES = (
    (re.compile(r" · \d+\.\d s\b| · \d+ tokens/s| · \d+/s"), ""),
    (re.compile(r"thought for (?:a moment|\d+\.\d s)"), "thought for #"),
    (_SPINNER, "*"),
    (re.compile(r" · \d+ s\b"), " · # s"),
    (re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}"), "ID"),
)


def call(number: int, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments)


def turns() -> list[Any]:
    """What the model says in the conversation, in one token each: a speed would differ from run to run."""
    usage = {"prompt_tokens": 11, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 8}}
    return [[*chunks(said)[:-2], {"choices": [], "usage": usage}, "[DONE]"] for said in _said()]


def _said() -> list[Message]:
    return [
        assistant("I look first.", reasoning="Where is it? " * 20, calls=(call(1, "read", path="sums.py"),)),
        assistant(calls=(call(2, "edit", path="sums.py", old="    return a - b", new="    return b + a"),)),
        assistant(ANSWER),
        assistant(calls=(call(3, "shell", command="echo begun; sleep 60"),)),
    ]


def walk(terminal: Terminal, shot: Callable[[str], None]) -> None:
    """Lead the conversation from its beginning; `shot` is called where a view is complete."""
    terminal.type("see @su")
    terminal.wait_for("test_sums.py")
    shot("completion")
    terminal.type("\x15repair add")
    terminal.press("Enter")
    terminal.wait_for("a would allow edit: /sums.py, in this chat")
    terminal.wait_for("waiting for you: run it?")
    shot("question")
    terminal.type("e\r")
    terminal.wait_for("change new, Enter asks again")
    terminal.type("\x15    return a + b")
    shot("edit-the-call")
    terminal.press("Enter")
    terminal.wait_for("return a + b")
    terminal.wait_for("waiting for you: run it?")
    terminal.type("a\r")
    terminal.wait_for("-1")
    terminal.wait_until(lambda: not _SPINNER.search("\n".join(terminal.display())))
    shot("answer")
    terminal.type("\x0cwait for it")
    terminal.press("Enter")
    terminal.wait_for("run it? [y]es", times=1)
    terminal.wait_for("would allow shell: echo begun")
    terminal.type("y\r")
    terminal.wait_for("runs ·")
    terminal.type("and this too")
    terminal.press("Enter")
    terminal.wait_for("queued: and this too")
    terminal.type("and this afterwards")
    terminal.press("Alt+Enter")
    terminal.wait_for("queued: and this afterwards")
    terminal.type("my draft")
    terminal.wait_for("my draft")
    shot("steering")
    terminal.press("Esc")
    terminal.wait_for("interrupted; say")
    shot("interrupted")
    for left in ("and this afterwards", "and this too"):
        terminal.type("\x15")
        terminal.press("Up")
        terminal.wait_for(f"ask> {left}")
    terminal.type("\x15\x0c/permissions\r")
    terminal.wait_for("in this chat: allow edit: /sums.py")
    terminal.type("/rewind\r")
    terminal.wait_for("2 repair add")
    terminal.wait_for("/rewind NUMBER goes back to before it")
    shot("commands")


def settled(terminal: Terminal) -> list[str]:
    """The rows of the screen once they stay as they are, without what differs from run to run."""
    last: list[str] = []
    until = time.monotonic() + 20
    while time.monotonic() < until:
        rows = [steady(row) for row in terminal.display()]
        if rows == last:
            break
        last = rows
        time.sleep(SETTLES_S)
    return last


def steady(row: str) -> str:
    for pattern, instead in _CHANGES:
        row = pattern.sub(instead, row)
    return row.rstrip()
