"""How many held-out bugs does `m3 fix` repair, and is every claim true?

    python -m benchmarks.heldout                     # 200 bugs, 50 candidates, model nano
    python -m benchmarks.heldout --count 20 --seed 3 --model URL-or-folder
    python -m benchmarks.heldout --jobs 2            # two bugs at a time; the seconds are those of a shared machine

Each bug is given to the same code as `m3 fix --repo REPO --issue 1 --candidates N` runs, with the model opened once.
Candidates are tried best first, so that one search with N candidates also tells what k < N would have found: a repair
at the t-th try counts for every k >= t. A claim is checked apart from m3: the patch is applied to a fresh copy and
the repository's tests are run by plain pytest; a claim of a repair with a failing test is a wrong claim. Stops and
goes on where it stopped: each finished bug is one line in the cache. The result is one JSON file under
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.heldout_bugs import HeldOutBug, make_bugs
from m3agent import __version__
from m3agent.events import Event, RunEnded
from m3agent.fix.flow import Fix
from m3agent.fix.intake import load_issue
from m3agent.fix.request import FixRequest
from m3agent.llm.factory import open_model
from m3agent.llm.protocol import LanguageModel
from m3agent.settings import Settings, load_settings

BUDGETS = (1, 5, 10, 20, 50)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One bug: the exit code of the fix, at which try it held, and what the check apart from m3 said."""

    id: str
    package: str
    kind: str
    exit_code: int
    outcome: str
    tried: int
    duration_s: float
    claimed: bool
    confirmed: bool
    same_as_original: bool
    commit: str = ""
    """Of m3, when this bug was run."""


class Shared:
    """Lends one open model to many fixes: closing it is the benchmark's task."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    async def opener(self, settings: Settings) -> LanguageModel:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    async def aclose(self) -> None:
        """Left to the benchmark."""


async def run_bug(bug: HeldOutBug, repo: Path, shared: Shared, settings: Settings, candidates: int) -> Result:
    ended: list[RunEnded] = []

    def sink(event: Event) -> None:
        if isinstance(event, RunEnded):
            ended.append(event)

    request = FixRequest(repo=repo, issue=load_issue("1", repo, settings), candidates=candidates, seed=0)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as spill:
        fix = Fix(request, settings, sink, run_id=bug.id, spill_dir=Path(spill), opener=shared.opener)
        exit_code = await fix.run()
    duration = time.monotonic() - start
    report = ended[-1].report if ended else {}
    claimed = exit_code == 0
    confirmed, same = check(bug, repo, report.get("diff", "")) if claimed else (False, False)
    return Result(
        id=bug.id,
        package=bug.package,
        kind=bug.kind,
        exit_code=exit_code,
        outcome=ended[-1].outcome if ended else "",
        tried=report.get("candidates", {}).get("tried", 0),
        duration_s=round(duration, 3),
        claimed=claimed,
        confirmed=confirmed,
        same_as_original=same,
        commit=commit(),
    )


def check(bug: HeldOutBug, repo: Path, diff: str) -> tuple[bool, bool]:
    """Apply the diff to a fresh copy and run its tests by plain pytest: (they pass, the module is the original
    again)."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "repo"
        shutil.copytree(repo, copy, ignore=shutil.ignore_patterns(".m3"))
        applied = subprocess.run(["git", "apply", "-"], cwd=copy, input=diff, text=True, capture_output=True)
        if applied.returncode != 0:
            return False, False
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        ran = subprocess.run(command, cwd=copy, capture_output=True, timeout=300)
        digest = hashlib.sha256((copy / bug.path).read_bytes()).hexdigest()
        return ran.returncode == 0, digest == bug.original_sha256


def summary(results: Sequence[Result], candidates: int) -> dict[str, Any]:
    """Shares over all bugs; seconds are medians of one fix, model loading not counted."""
    fixed = [r for r in results if r.claimed and r.confirmed]
    kinds = sorted({r.kind for r in results})
    return {
        "bugs": len(results),
        "fixed_at": {str(k): _share([r for r in fixed if r.tried <= k], results) for k in BUDGETS if k <= candidates},
        "wrong_claims": sum(r.claimed and not r.confirmed for r in results),
        "same_as_original": _share([r for r in fixed if r.same_as_original], fixed),
        "median_s": round(statistics.median(r.duration_s for r in results), 2) if results else None,
        "median_s_fixed": round(statistics.median(r.duration_s for r in fixed), 2) if fixed else None,
        "exit_codes": {str(c): sum(r.exit_code == c for r in results) for c in sorted({r.exit_code for r in results})},
        "by_kind": {k: [sum(r.kind == k for r in fixed), sum(r.kind == k for r in results)] for k in kinds},
    }


def _share(part: Sequence[Result], whole: Sequence[Result]) -> float:
    return round(len(part) / len(whole), 4) if whole else 0.0


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "m3": __version__,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
    }


def commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return git.stdout.strip()


async def run_missing(options: argparse.Namespace, bugs: Sequence[HeldOutBug]) -> dict[str, Result]:
    """Run the bugs that the log does not hold yet; returns the results by the bugs' ids."""
    home = options.cache / f"bugs-{options.count}-{options.seed}"
    log = home / f"results-{options.tag}-{options.candidates}.jsonl"
    done = {r["id"]: Result(**r) for r in map(json.loads, log.read_text().splitlines())} if log.exists() else {}
    missing = [bug for bug in bugs if bug.id not in done]
    if not missing:
        return done
    settings = load_settings(model=options.model, time_limit_s=options.time_limit, state_dir=options.cache / "state")
    shared = Shared(await open_model(settings))
    for bug in missing:
        result = await run_bug(bug, home / bug.id, shared, settings, options.candidates)
        done[bug.id] = result
        with log.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")
        told = f"{result.outcome} at try {result.tried}, {result.duration_s:.1f} s"
        print(f"{len(done)}/{len(bugs)} {bug.id} {told}", file=sys.stderr)
    await shared.model.aclose()
    return done


def run_jobs(argv: Sequence[str], jobs: int) -> None:
    """Let `jobs` processes run every `jobs`-th bug each; what one of them leaves out is run afterwards."""
    command = [sys.executable, "-m", "benchmarks.heldout", *argv]
    running = [subprocess.Popen([*command, "--share", f"{index}/{jobs}"]) for index in range(jobs)]
    for process in running:
        process.wait()


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    bugs = make_bugs(options.cache, count=options.count, seed=options.seed)
    if len(bugs) < options.count:
        print(f"the packages gave {len(bugs)} bugs, not {options.count}", file=sys.stderr)
    done = await run_missing(options, bugs)
    results = [done[bug.id] for bug in bugs]
    packages = {f"{b.package} {b.version}" for b in bugs}
    return {
        "benchmark": "heldout",
        "model": options.model or "nano",
        "candidates": options.candidates,
        "seed": options.seed,
        "jobs": options.jobs,
        "packages": sorted(packages),
        **summary(results, options.candidates),
        "machine": machine(),
        "results": [dataclasses.asdict(r) for r in results],
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heldout", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--model", default=None, help="as for m3 fix; default nano")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for one fix")
    parser.add_argument("--cache", type=Path, default=Path("build/heldout"), help="packages, repositories, results")
    parser.add_argument("--tag", default="nano", help="names the results; another one starts afresh")
    parser.add_argument("--jobs", type=int, default=1, help="bugs at a time")
    parser.add_argument("--share", metavar="I/N", help="run every N-th bug from the I-th on, and print no result")
    parser.add_argument("--make-only", action="store_true", help="make the repositories and stop")
    options = parser.parse_args(argv)
    options.cache = options.cache.absolute()
    if options.make_only:
        print(f"{len(make_bugs(options.cache, count=options.count, seed=options.seed))} bugs under {options.cache}")
        return
    if options.share:
        index, jobs = map(int, options.share.split("/"))
        bugs = make_bugs(options.cache, count=options.count, seed=options.seed)
        asyncio.run(run_missing(options, bugs[index::jobs]))
        return
    if options.jobs > 1:
        make_bugs(options.cache, count=options.count, seed=options.seed)
        run_jobs(sys.argv[1:] if argv is None else argv, options.jobs)
    result = asyncio.run(measure(options))
    out = Path(__file__).parent / "results" / f"heldout-{options.tag}-{result['machine']['date']}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k not in ("results", "by_kind")}, indent=1))
    print(f"written to {out}")


if __name__ == "__main__":
    main()
