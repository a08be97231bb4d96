"""What does the chat's screen cost, beside printing plain text?

    python -m benchmarks.terminal [--megabytes 10] [--turns 5000]

A child process draws in a pseudo-terminal: the real screen with the real live view, fed with the events of a model
that streams without a pause. This process reads what it draws, as a terminal does, and types meanwhile. The result is
one JSON file under benchmarks/results/.

- stream: an answer of so many megabytes, in pieces of a token. Memory before and after, the time from a key press until
  it stands on the screen, the cost of a piece in the first and in the last tenth of the stream, and the bytes that the
  terminal was sent for each byte of the answer
- turns: a session of so many turns, each with reasoning, a call, its output and an answer; the same figures
- plain: the same answer printed as it comes, without any view
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import resource
import select
import statistics
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.text import Text

from benchmarks.heldout import machine
from m3_tools.base import CommandBlock
from m3agent.events import AnswerText, Event, ThinkText, ToolEnded, ToolOutput, ToolStarted, TurnEnded, TurnStarted
from m3agent.ui.completion import ChatCompleter
from m3agent.ui.screen import Screen
from m3agent.ui.terminal import TerminalView

ROOT = Path(__file__).resolve().parents[1]
PIECE = 5
"""Characters in a piece: about a token."""
KEYS_EVERY_S = 0.25
BLOCKS = (
    "A paragraph about **one thing**, with `code` in it and some more words, until it ends here.\n\n",
    "- one item\n- another item with a [link](https://example.com)\n\n",
    "```py\n" + "".join(f"def f{n}(x):\n    return x + {n}\n" for n in range(20)) + "```\n\n",
    "| a | b |\n|---|---|\n| one | two |\n\n",
)
LONG_BLOCK = "```py\n" + "".join(f"value_{n} = compute({n})  # one of many\n" for n in range(400)) + "```\n\n"
BARS = {"echo_ms": 50.0, "memory_growth_mb": 20.0, "last_to_first_tenth": 1.5}


def answer_pieces(num_bytes: int) -> Iterator[str]:
    """A long answer, in pieces. Now and then comes a code block of 16 KB without a blank line, the worst of answers."""
    sent = number = 0
    while sent < num_bytes:
        block = LONG_BLOCK if number % 100 == 50 else BLOCKS[number % len(BLOCKS)]
        number += 1
        for at in range(0, len(block), PIECE):
            yield block[at : at + PIECE]
        sent += len(block)


def stream_events(num_bytes: int) -> Iterator[Event]:
    yield TurnStarted(turn=1)
    for piece in answer_pieces(num_bytes):
        yield AnswerText(text=piece)
    yield turn_ended(1)


def turns_events(turns: int) -> Iterator[Event]:
    for turn in range(1, turns + 1):
        yield TurnStarted(turn=turn)
        for _ in range(10):
            yield ThinkText(text="Where is it? ")
        yield ToolStarted(call_id=f"c{turn}", name="shell", arguments={"command": f"ls {turn}"})
        for number in range(5):
            yield ToolOutput(call_id=f"c{turn}", text=f"file{number}.py\n")
        output = CommandBlock(command=f"ls {turn}", exit_code=0, duration_s=0.1, output="file.py\n" * 5)
        yield ToolEnded(
            call_id=f"c{turn}", name="shell", is_error=False, duration_s=0.1, text="file.py", display=(output,)
        )
        for at in range(0, len(BLOCKS[0]), PIECE):
            yield AnswerText(text=BLOCKS[0][at : at + PIECE])
        yield turn_ended(turn)


def turn_ended(turn: int) -> TurnEnded:
    return TurnEnded(
        turn=turn, finish="stop", prompt_tokens=1000, cached_tokens=900, completion_tokens=100, duration_s=1.0
    )


class Person:
    """Whoever sits before the screen; nothing they do has an effect but in the draft."""

    working, mode, queued = True, "auto", ()

    def status(self) -> Text:
        return Text("m3 · auto · 12 % of 1M · 90 % cached · 50 tokens/s", "quiet")

    def submit(self, line: str, *, later: bool = False) -> None: ...
    def picture_name(self, path: Path | None) -> str:
        return "picture"

    async def take_picture(self, name: str, path: Path | None) -> bool:
        return False

    def stop(self) -> None: ...
    def leave(self) -> None: ...
    def next_mode(self) -> None: ...
    def expand(self) -> None: ...
    def take_back(self) -> str:
        return ""


async def draw(events: list[Event] | Iterator[Event], report: Path) -> None:
    """The child: draw the events on the terminal that it has, and write what it cost."""
    with tempfile.TemporaryDirectory() as folder:
        console = Console(file=sys.stdout, force_terminal=True, color_system="256")
        completer = ChatCompleter({}, lambda: [])
        screen = Screen(console, Person(), completer=completer, history=Path(folder) / "history", vi=False)
        view = TerminalView(console)
        view.surface = screen
        drawing = asyncio.create_task(screen.run())
        await asyncio.sleep(0.5)
        times: list[float] = []
        memory: list[int] = []
        process = psutil.Process()
        last = time.process_time()
        for number, event in enumerate(events):
            view(event)
            if number % 20 == 0:
                await asyncio.sleep(0)  # a model's events come through the loop that also reads the keys
            if number % 1000 == 0:
                now = time.process_time()
                times.append((now - last) / 1000)
                memory.append(process.memory_info().rss)
                last = now
        view.close()
        screen.close()
        await drawing
    tenth = max(1, len(times[1:]) // 10)
    begun = memory[len(memory) // 10]
    report.write_text(
        json.dumps(
            {
                "events": number + 1,
                "us_per_event_first_tenth": 1e6 * statistics.mean(times[1 : 1 + tenth]),
                "us_per_event_last_tenth": 1e6 * statistics.mean(times[-tenth:]),
                "memory_mb": round(memory[-1] / 1e6, 1),
                "memory_growth_mb": round((max(memory) - begun) / 1e6, 1),
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
            }
        )
    )


def measured(*arguments: str) -> dict[str, Any]:
    """Run the child in a pseudo-terminal of 80 by 24, type into it, and read what it draws."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        command = [sys.executable, "-m", "benchmarks.terminal", "--draw", str(report), *arguments]
        started = time.perf_counter()
        child = subprocess.Popen(command, cwd=ROOT, stdin=slave, stdout=slave, stderr=subprocess.PIPE, close_fds=True)
        os.close(slave)
        typed: list[float] = []
        echoes: list[float] = []
        sent = 0
        tail = b""
        letter = 0
        waiting: bytes = b""
        pressed = next_key = time.perf_counter() + 2.0
        while child.poll() is None or select.select([master], [], [], 0)[0]:
            if select.select([master], [], [], 0.005)[0]:
                try:
                    data = os.read(master, 65_536)
                except OSError:
                    break
                sent += len(data)
                if waiting and waiting in tail + data:
                    echoes.append(time.perf_counter() - pressed)
                    waiting = b""
                tail = data[-len(waiting) or len(data) :][-16:]
            now = time.perf_counter()
            if not waiting and now > next_key:
                letter += 1
                mark = f"~{letter % 1000:03}~"
                os.write(master, b"\x15" + mark.encode())  # Ctrl-U, then a mark that no answer holds
                waiting, pressed, next_key = mark.encode(), now, now + KEYS_EVERY_S
                typed.append(now)
        took = time.perf_counter() - started
        os.close(master)
        error = child.stderr.read().decode() if child.stderr else ""
        if child.wait():
            raise RuntimeError(error)
        result: dict[str, Any] = json.loads(report.read_text())
    result["seconds"] = round(took, 1)
    result["bytes_drawn"] = sent
    if echoes:
        ordered = sorted(echoes)
        result["keys"] = len(ordered)
        result["echo_ms_median"] = round(1000 * statistics.median(ordered), 1)
        result["echo_ms_95th"] = round(1000 * ordered[int(0.95 * (len(ordered) - 1))], 1)
        result["echo_ms_worst"] = round(1000 * ordered[-1], 1)
    result["last_to_first_tenth"] = round(result["us_per_event_last_tenth"] / result["us_per_event_first_tenth"], 2)
    return result


def plain(num_bytes: int) -> dict[str, Any]:
    """Printing the same pieces to a pseudo-terminal without any view."""
    master, slave = pty.openpty()
    reader = threading.Thread(target=_drain, args=(master,), daemon=True)
    reader.start()
    started, used, pieces = time.perf_counter(), time.process_time(), 0
    with open(slave, "w", encoding="utf-8") as terminal:
        for piece in answer_pieces(num_bytes):
            print(piece, end="", file=terminal, flush=True)
            pieces += 1
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "us_per_event": 1e6 * (time.process_time() - used) / pieces,
    }


def _drain(master: int) -> None:
    try:
        while os.read(master, 65_536):
            pass
    except OSError:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--turns", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--draw", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--what", choices=["stream", "turns"], default="stream", help=argparse.SUPPRESS)
    options = parser.parse_args()
    num_bytes = int(options.megabytes * 1e6)
    if options.draw:
        events = stream_events(num_bytes) if options.what == "stream" else turns_events(options.turns)
        asyncio.run(draw(events, options.draw))
        return
    results = {
        "what": "the screen of m3 chat beside printing plain text",
        "command": "python -m benchmarks.terminal",
        "machine": machine(),
        "load_average": os.getloadavg(),
        "megabytes": options.megabytes,
        "turns_in_session": options.turns,
        "plain": plain(num_bytes),
        "stream": measured("--what", "stream", "--megabytes", str(options.megabytes)),
        "turns": measured("--what", "turns", "--turns", str(options.turns)),
    }
    for name in ("stream", "turns"):
        found = results[name]
        assert isinstance(found, dict)
        found["meets"] = {
            "echo_ms": found.get("echo_ms_95th", 1e9) <= BARS["echo_ms"],
            "memory_growth_mb": found["memory_growth_mb"] <= BARS["memory_growth_mb"],
            "last_to_first_tenth": found["last_to_first_tenth"] <= BARS["last_to_first_tenth"],
        }
    results["bars"] = BARS
    text = json.dumps(results, indent=1)
    out = options.out / f"terminal-{time.strftime('%Y-%m-%d')}.json"
    out.write_text(text + "\n")
    print(text)
    print(out)


if __name__ == "__main__":
    main()
