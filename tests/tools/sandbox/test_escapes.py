"""No way out of the sandbox: every backend of this machine against real commands."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from m3_tools.process import run_process
from m3_tools.sandbox import BACKENDS, Backend, Sandbox, Trial, try_backend
from tests.tools.sandbox.ways_out import NOT_TRIED_OUTSIDE, WAYS_OUT
from tests.tools.sandbox.world import World

BY_NAME = {backend.name: backend for backend in BACKENDS if (backend.name == "seatbelt") == (sys.platform == "darwin")}
"""The backends of this system; one that does not work here is skipped with its reason."""
ROOT = Path(__file__).parents[3]
NOBODY = 65534
AS_NOBODY = """
import json, os, subprocess, sys
from pathlib import Path
from m3_tools.sandbox import BACKENDS, Policy, Sandbox
name, script, policy = json.loads(sys.argv[1])
paths = {key: tuple(Path(each) for each in value) for key, value in policy["paths"].items()}
sandbox = Sandbox({b.name: b for b in BACKENDS}[name], Policy(**paths, environment=tuple(policy["environment"])))
with sandbox.confine(["bash", "-c", script], os.environ) as inside:
    sys.exit(subprocess.run(inside.argv, env=inside.environment, stdin=subprocess.DEVNULL).returncode)
"""


@functools.cache
def trial(name: str) -> Trial:
    return try_backend(BY_NAME[name])


def working(name: str) -> Backend:
    found = trial(name)
    if not found.works:
        pytest.skip(found.line())
    return found.backend


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that every user may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="m3-world-") as name:
        os.chmod(name, 0o755)
        yield Path(name).resolve()


def output_of(argv: list[str], world: World, environment: dict[str, str]) -> str:
    result = asyncio.run(run_process(argv, cwd=world.work, environment=environment, timeout_s=20))
    assert not result.timed_out, result.text
    return result.text


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize("name", BY_NAME)
def test_no_way_leads_out(name: str, way: str, base: Path) -> None:
    backend = working(name)
    with World(base, os.geteuid()) as world:
        sandbox = Sandbox(backend, world.policy())
        script = f"echo started; {WAYS_OUT[way]}"
        with sandbox.confine(["bash", "-c", script], world.environment) as inside:
            text = output_of(inside.argv, world, inside.environment)
        assert text.startswith("started"), text
        assert "ESCAPED" not in text, text
        assert world.seen() == set(), text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; the tests above ran as one")
@pytest.mark.parametrize("name", BY_NAME)
def test_no_way_leads_out_for_an_ordinary_user(name: str, base: Path) -> None:
    working(name)
    with World(base, NOBODY) as world:
        script = "echo started\n" + "\n".join(f"(\n{way}\n)" for way in WAYS_OUT.values())
        policy = dataclasses.asdict(world.policy())
        paths = {key: [str(path) for path in policy[key]] for key in ("writable", "protected", "hidden", "readable")}
        plan = json.dumps([name, script, {"paths": paths, "environment": policy["environment"]}])
        done = subprocess.run(
            ["/usr/bin/python3", "-c", AS_NOBODY, plan],
            user=NOBODY, group=NOBODY, extra_groups=[], cwd=world.work, capture_output=True, text=True, timeout=200,
            env={**world.environment, "PY": "/usr/bin/python3", "PYTHONPATH": str(ROOT / "tools")},
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if "ModuleNotFoundError" in done.stderr or "PermissionError" in done.stderr.partition("\n")[0]:
            pytest.skip(f"another user cannot read {ROOT}, or has no Python")
        assert done.stdout.startswith("started"), done.stderr
        assert "ESCAPED" not in done.stdout, done.stdout
        assert world.seen() == set(), done.stdout + done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the scripts use what Linux offers")
@pytest.mark.parametrize("way", sorted(WAYS_OUT.keys() - NOT_TRIED_OUTSIDE))
def test_without_a_sandbox_the_way_leads_out(way: str, base: Path) -> None:
    """A script that cannot escape even so would prove nothing above."""
    with World(base, os.geteuid()) as world:
        text = output_of(["bash", "-c", WAYS_OUT[way]], world, world.environment)
        assert "ESCAPED" in text or world.seen(), text


def test_there_are_forty_ways_and_names_are_spelt_right() -> None:
    assert len(WAYS_OUT) >= 40
    assert WAYS_OUT.keys() >= NOT_TRIED_OUTSIDE
