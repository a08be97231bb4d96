"""The repository's tests as one thing to run: how, with which Python, within which time; each run is evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from m3_tools.report import TestReport
from m3_tools.run_tests import RunTests, find_python, run_tests
from m3_tools.sandbox import Sandbox
from m3_tools.secret import Secrets

FIRST_LIMIT_S = 600.0
"""The limit of the first run, whose duration is not known yet."""


@dataclasses.dataclass(kw_only=True)
class Suite:
    """Tests in the work tree `root`, run with the interpreter that belongs to the person's folder `origin`.

    `command` is the person's choice or empty; `environment` holds no credentials; `runs` lists what was run.
    """

    root: Path
    origin: Path
    spill_dir: Path
    command: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sandbox: Sandbox | None = None
    unconfined: str = ""
    """Why there is no sandbox, where the person did not choose to do without."""
    secrets: Secrets = Secrets()
    """What the model is not shown."""
    first_limit_s: float = FIRST_LIMIT_S
    runs: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._python = find_python(self.origin, self.environment)

    @property
    def python(self) -> str:
        """The interpreter of the person's folder, which has what the tests import."""
        return self._python

    async def run(
        self,
        name: str,
        ids: Sequence[str] = (),
        *,
        limit_s: float | None = None,
        trace: bool = False,
        load_plugins: bool = True,
        stop_at_failure: bool = False,
        hash_seed: int | None = None,
    ) -> TestReport:
        """Run all tests, or those in `ids`. `name` says what the run was for; `hash_seed` is Python's, else random."""
        seed = {} if hash_seed is None else {"PYTHONHASHSEED": str(hash_seed)}
        report = await run_tests(
            self.root,
            tuple(ids),
            command=self.command or None,
            timeout_s=limit_s or self.first_limit_s,
            trace=trace,
            load_plugins=load_plugins,
            stop_at_failure=stop_at_failure,
            python=self._python,
            environment={**self.environment, **seed},
            spill_dir=self.spill_dir,
            sandbox=self.sandbox,
        )
        self.runs.append(
            {
                "name": name,
                "command": report.command,
                "exit_code": report.exit_code,
                "duration_s": round(report.duration_s, 3),
                "counts": counts_json(report),
                "timed_out": report.timed_out,
            }
        )
        return report

    async def needs_plugins(self, known: TestReport, *, limit_s: float) -> bool:
        """Whether any outcome differs without the runner's installed plugins; a run starts several times faster so.

        `known` is a run of the same code with plugins.
        """
        bare = await self.run("without plugins", limit_s=limit_s, load_plugins=False)
        errors = {f.test_id: f.error_type for f in known.failures}
        return bare.outcomes != known.outcomes or errors != {f.test_id: f.error_type for f in bare.failures}

    @property
    def shown_command(self) -> str:
        """The command that runs all tests, as a person would type it; empty before the first run."""
        return str(self.runs[0]["command"]) if self.runs else self.command

    def tool(self, limit_s: float) -> RunTests:
        """The `test` tool for a model that works freely."""
        return RunTests(
            command=self.command or None, python=self._python, timeout_s=limit_s, trace=True, compare_runs=True
        )


def counts_json(report: TestReport) -> dict[str, int]:
    return dataclasses.asdict(report.counts)
