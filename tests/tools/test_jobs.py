"""Commands that go into the background: they can be read, awaited and stopped, and none outlives the run."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from m3_tools.base import ToolContext, ToolResult, call_tool
from m3_tools.job import JobTool
from m3_tools.jobs import MAX_JOBS, Jobs
from m3_tools.sandbox import Sandbox, detect, work_tree_policy
from m3_tools.shell import ALONE, ShellTool


@pytest.fixture
def patient(context: ToolContext) -> ToolContext:
    """A context in which a call waits for a third of a second."""
    return dataclasses.replace(context, jobs=Jobs(patience_s=0.3))


@pytest.fixture
def marker() -> Iterator[str]:
    """Seconds to sleep for; afterwards nothing may sleep for so long."""
    marker = f"8000.{time.monotonic_ns() % 10**9}"
    yield marker
    assert not [p for p in psutil.process_iter(["cmdline"]) if marker in (p.info["cmdline"] or ())]


async def shell(context: ToolContext, command: str, **arguments: object) -> ToolResult:
    return await call_tool(ShellTool(), {"command": command, **arguments}, context)


async def job(context: ToolContext, number: int = 1, **arguments: object) -> ToolResult:
    return await call_tool(JobTool(), {"number": number, **arguments}, context)


async def read_until(context: ToolContext, word: str) -> str:
    """Read the job until its new output holds the word; gives that answer."""
    while word not in (text := (await job(context)).text):
        await asyncio.sleep(0.05)
    return text


def test_a_long_command_goes_on_and_is_read(patient: ToolContext) -> None:
    async def run() -> None:
        assert patient.jobs is not None
        until = "until [ -e {0} ]; do sleep 0.02; done"
        first = await shell(patient, f"echo one; {until.format('a')}; echo two; {until.format('b')}; exit 3")
        assert not first.is_error
        assert first.text.startswith("still running after 0 s, now as job 1 (pid ")
        assert "one" in first.text or "one" in await read_until(patient, "one")
        (running,) = patient.jobs.running()
        assert f"(pid {running.pid})" in first.text
        assert psutil.pid_exists(running.pid or 0)
        assert (await job(patient)).text.endswith("\n(no new output)")
        (patient.root / "a").touch()
        assert (await read_until(patient, "two")).endswith("\ntwo")
        (patient.root / "b").touch()
        last = await job(patient, wait_s=30)
        assert re.fullmatch(r"exit code 3( after \d+ s)?\none\ntwo", last.text)
        assert last.is_error
        assert (await job(patient)).text == last.text, "it can be read again"

    asyncio.run(run())


SERVE = """\
import socketserver, sys
server = socketserver.TCPServer(("127.0.0.1", int(sys.argv[1])), None)
print("port", server.server_address[1], flush=True)
server.serve_forever()
"""


def test_a_server_goes_on_at_once_and_one_that_cannot_start_says_why(context: ToolContext) -> None:
    """It had to be waited for: its command went into the background after a minute."""
    jobs = Jobs(patience_s=60)
    waiting = dataclasses.replace(context, jobs=jobs)
    (context.root / "serve.py").write_text(SERVE)
    command = f"exec {sys.executable} serve.py"

    async def run() -> None:
        start = time.monotonic()
        first = (await shell(waiting, f"{command} 0", background=True)).text
        assert time.monotonic() - start < 20
        assert re.search(r"now as job 1 \(pid \d+\), until its deadline of 3600 s", first)
        port = (first if "port" in first else await read_until(waiting, "port")).split()[-1]
        second = await shell(waiting, f"{command} {port}", background=True)
        assert second.is_error
        assert "Address already in use" in second.text
        assert (await job(waiting, action="stop")).text.startswith("stopped")

    asyncio.run(run())


def test_a_short_command_does_not(patient: ToolContext) -> None:
    async def run() -> None:
        assert patient.jobs is not None
        assert (await shell(patient, "echo x")).text == "exit code 0\nx"
        assert (await shell(patient, "kill -9 $$")).text.startswith("ended by signal 9")
        assert "job 1. Running: none" in (await job(patient)).text
        assert patient.jobs.running() == []

    asyncio.run(run())


def test_it_is_stopped_with_all_its_children(patient: ToolContext, marker: str) -> None:
    async def run() -> None:
        await shell(patient, f"trap '' TERM; setsid sleep {marker} & sleep {marker}")
        assert (await job(patient, action="stop")).text.startswith("stopped (pid ")
        assert (await job(patient, action="stop")).text.startswith("stopped (pid ")

    asyncio.run(run())


def test_its_deadline_holds(patient: ToolContext, marker: str) -> None:
    async def run() -> None:
        await shell(patient, f"echo x; sleep {marker}", timeout_s=0.6)
        ended = await job(patient, wait_s=10)
        assert ended.text.startswith("stopped at the deadline")
        assert ended.text.endswith("\nx")

    asyncio.run(run())


def test_none_outlives_the_run(patient: ToolContext, marker: str) -> None:
    async def run() -> None:
        assert patient.jobs is not None
        await shell(patient, f"sleep {marker}")
        await shell(patient, f"(setsid sleep {marker} &) ; sleep {marker}")
        stopped = await patient.jobs.close()
        assert [each.number for each in stopped] == [1, 2]
        assert await patient.jobs.close() == []

    asyncio.run(run())


def test_an_interrupt_while_the_call_waits_stops_it(patient: ToolContext, marker: str) -> None:
    async def run() -> None:
        task = asyncio.ensure_future(shell(patient, f"trap '' TERM; sleep {marker}; sleep {marker}"))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert patient.jobs is not None
        assert patient.jobs.running() == []

    asyncio.run(run())


def test_what_nobody_reads_is_bounded_and_live_output_ends_with_the_call(patient: ToolContext) -> None:
    seen: list[str] = []

    async def run() -> None:
        watched = dataclasses.replace(patient, on_output=seen.append, jobs=Jobs(patience_s=1))
        flood = "head -c 3000000 /dev/zero | tr '\\0' '\\n'"
        await shell(watched, f"echo one; until [ -e a ]; do sleep 0.02; done; {flood}; sleep 20")
        (patient.root / "a").touch()
        assert len(await read_until(watched, "bytes left out")) < 13_000
        patient.jobs = watched.jobs
        assert patient.jobs is not None
        await patient.jobs.close()

    asyncio.run(run())
    assert "".join(seen) == "one\n"


def test_half_a_secret_is_not_read_either(patient: ToolContext) -> None:
    half = "ghp_0123456789abcdefghij", "klmnopqrstuvwxyz"

    async def run() -> None:
        await shell(
            patient, f"printf {half[0]}; until [ -e a ]; do sleep 0.02; done; echo {half[1]}; echo END; sleep 9"
        )
        before = (await job(patient)).text
        (patient.root / "a").touch()
        text = before + await read_until(patient, "END")
        assert "[secret left out: " in text
        assert half[0] not in text
        assert half[1] not in text
        assert patient.jobs is not None
        await patient.jobs.close()

    asyncio.run(run())


def test_when_there_are_too_many_a_call_waits_for_its_command(patient: ToolContext) -> None:
    async def run() -> None:
        assert patient.jobs is not None
        for _ in range(MAX_JOBS):
            await shell(patient, "sleep 30")
        assert (await shell(patient, "sleep 0.6; echo x")).text == "exit code 0\nx"
        refused = await shell(patient, "sleep 30", background=True)
        assert refused.is_error
        assert refused.text.startswith("There is no room for another job. Running: 1 (sleep 30), ")
        await patient.jobs.close()

    asyncio.run(run())


@pytest.mark.skipif(detect().backend is None, reason="no sandbox works here")
def test_the_boundary_holds_as_long_as_the_job(patient: ToolContext, marker: str) -> None:
    backend = detect().backend
    assert backend is not None
    policy = work_tree_policy(patient.root, readable=(Path(sys.prefix), Path(sys.base_prefix)))
    inside = dataclasses.replace(patient, sandbox=Sandbox(backend, policy))

    async def run() -> None:
        await shell(inside, f"sleep 0.6; mkdir .claude; echo x > .claude/y; sleep {marker}")
        await asyncio.sleep(0.6)
        assert (await job(inside, action="stop")).text.startswith("stopped")

    asyncio.run(run())
    assert not (patient.root / ".claude").exists()


@pytest.mark.skipif(detect().backend is None, reason="no sandbox works here")
def test_a_server_that_no_other_command_reaches_says_so(patient: ToolContext) -> None:
    """It said that it listens, and nothing could connect."""
    backend = detect().backend
    assert backend is not None
    policy = work_tree_policy(patient.root, readable=(Path(sys.prefix), Path(sys.base_prefix)))
    (patient.root / "serve.py").write_text(SERVE)
    told, reached = {}, {}

    async def run(network: bool) -> None:
        sandbox = Sandbox(backend, dataclasses.replace(policy, network=network))
        inside = dataclasses.replace(patient, sandbox=sandbox, jobs=Jobs(patience_s=0.3))
        assert inside.jobs is not None
        told[network] = (await shell(inside, f"exec {sys.executable} serve.py 0", background=True)).text
        port = (
            (told[network] if "port" in told[network] else await read_until(inside, "port"))
            .split("port ")[1]
            .split()[0]
        )
        reached[network] = not (await shell(inside, f"exec 3<>/dev/tcp/127.0.0.1/{port}")).is_error
        await inside.jobs.close()

    asyncio.run(run(False))
    asyncio.run(run(True))
    assert reached == {False: False, True: True}
    assert [ALONE in told[network] for network in (False, True)] == [True, False]
