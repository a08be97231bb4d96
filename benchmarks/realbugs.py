"""How many small bugs in real packages does `m3 fix` repair, is every claim true, and is the work tree left alone?

    python -m benchmarks.realbugs                          # 131 bugs in 12 packages, nano, search, 50 candidates
    python -m benchmarks.realbugs --make-only              # only download the packages and make the bugs
    python -m benchmarks.realbugs --limit 0                # only write the result of what has run so far

Each bug is a fresh clone and one run of the command `m3 fix --strategy search --candidates 50`, a process of its own,
as a person would start it. The tests are the package's own. A claim is checked apart from m3: the patch is applied to
another clone, and plain pytest must then pass. Whether the clone is as it was is read from its files' bytes, its HEAD,
its branches and its index. Stops and goes on where it stopped: each finished bug is one line in the cache. The result
is one JSON file under benchmarks/results/ that says how many of the bugs have run.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.heldout import commit, machine
from benchmarks.realbugs_make import RealBug, make_bugs, run_tests, test_python

SEED = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One run of `m3 fix`, and what the checks apart from it said."""

    id: str
    package: str
    held_out: bool
    kind: str
    exit_code: int
    outcome: str
    summary: str
    tried: int
    duration_s: float
    claimed: bool
    confirmed: bool
    intact: bool
    commit: str
    diff: str = ""
    """The claimed repair, to be looked at; empty in rows that are older than this field."""


def run_bug(bug: RealBug, cache: Path, options: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory(prefix="realbug-") as folder:
        repo, issue = Path(folder) / bug.package, Path(folder) / "issue.md"
        clone(cache, bug, repo)
        issue.write_text(bug.issue)
        before = state(repo)
        command = [sys.executable, "-m", "m3agent", "fix", "--repo", str(repo), "--issue", str(issue)]
        command += ["--model", options.model, "--strategy", "search", "--candidates", str(options.candidates)]
        command += ["--seed", "0", "--time-limit", str(options.time_limit), "--output", "json"]
        environment = {**os.environ, "M3_HOME": str(Path(folder) / "home")}
        start = time.monotonic()
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        duration = time.monotonic() - start
        report = json.loads(done.stdout) if done.stdout.strip() else {}
        claimed = done.returncode == 0
        return Result(
            id=bug.id,
            package=bug.package,
            held_out=bug.held_out,
            kind=bug.kind,
            exit_code=done.returncode,
            outcome=report.get("outcome", ""),
            summary=(report.get("summary") or done.stderr[-300:]).splitlines()[0],
            tried=report.get("candidates", {}).get("tried", 0),
            duration_s=round(duration, 2),
            claimed=claimed,
            confirmed=claimed and confirmed(bug, cache, report["diff"], Path(folder) / "again"),
            intact=state(repo) == before,
            commit=commit(),
            diff=report.get("diff", "") if claimed else "",
        )


def clone(cache: Path, bug: RealBug, target: Path) -> None:
    """A fresh clone with the environment of the tests beside the code, where a person has it."""
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(cache / "repos" / bug.id), str(target)], check=True)
    with (target / ".git" / "info" / "exclude").open("a") as file:
        file.write("/.venv\n/.m3/\n")
    (target / ".venv").symlink_to(test_python(cache).parent.parent)


def confirmed(bug: RealBug, cache: Path, diff: str, target: Path) -> bool:
    """Whether the patch applies to another clone and all of the package's tests pass there."""
    clone(cache, bug, target)
    applied = subprocess.run(
        ["git", "apply", "-"], cwd=target, input=diff.encode("utf-8", "surrogateescape"), capture_output=True
    )
    return applied.returncode == 0 and run_tests(cache, target)[0] == 0


def state(repo: Path) -> str:
    """A hash over every file of the work tree (`.m3` left out), HEAD, branches, index and stash."""
    digest = hashlib.sha256()
    for path in sorted(repo.rglob("*")):
        parts = path.relative_to(repo).parts
        if parts[0] not in (".git", ".m3", ".venv"):
            digest.update(f"{path.relative_to(repo)} {path.lstat().st_mode}\n".encode())
            if path.is_file():
                digest.update(path.read_bytes())
    for arguments in (["rev-parse", "HEAD"], ["for-each-ref"], ["ls-files", "--stage"], ["stash", "list"]):
        digest.update(subprocess.run(["git", *arguments], cwd=repo, check=True, capture_output=True).stdout)
    return digest.hexdigest()


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Shares over all bugs; seconds are those of the whole command, model loading included."""
    fixed = [r for r in results if r.claimed and r.confirmed]
    unseen = [r for r in results if r.held_out]
    packages = sorted({r.package for r in results})
    return {
        "bugs": len(results),
        "packages": len(packages),
        "fixed_and_verified": _share(fixed, results),
        "fixed_and_verified_held_out": _share([r for r in fixed if r.held_out], unseen),
        "wrong_claims": sum(r.claimed and not r.confirmed for r in results),
        "not_intact": sum(not r.intact for r in results),
        "median_s": round(statistics.median(r.duration_s for r in results), 1) if results else None,
        "median_s_fixed": round(statistics.median(r.duration_s for r in fixed), 1) if fixed else None,
        "exit_codes": {str(c): sum(r.exit_code == c for r in results) for c in sorted({r.exit_code for r in results})},
        "by_package": {p: [sum(r.package == p for r in fixed), sum(r.package == p for r in results)] for p in packages},
    }


def _share(part: Sequence[Result], whole: Sequence[Result]) -> float | None:
    return round(len(part) / len(whole), 4) if whole else None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.realbugs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--model", default="nano", help="as for m3 fix")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds for one fix")
    parser.add_argument("--cache", type=Path, default=Path("build/realbugs"), help="packages, repositories, results")
    parser.add_argument("--limit", type=int, help="stop after so many more bugs")
    parser.add_argument("--make-only", action="store_true", help="make the bugs and stop")
    options = parser.parse_args(argv)
    cache = options.cache.absolute()
    cache.mkdir(parents=True, exist_ok=True)
    bugs = make_bugs(cache, seed=options.seed)
    if options.make_only:
        print(f"{len(bugs)} bugs under {cache}")
        return
    log = cache / f"results-{Path(options.model).name}-{options.seed}-{options.candidates}.jsonl"
    done = {r["id"]: Result(**r) for r in map(json.loads, log.read_text().splitlines())} if log.exists() else {}
    for bug in [bug for bug in _in_turns(bugs) if bug.id not in done][: options.limit]:
        result = run_bug(bug, cache, options)
        done[bug.id] = result
        with log.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")
        print(f"{len(done)}/{len(bugs)} {bug.id} {result.outcome} {result.duration_s:.0f} s", file=sys.stderr)
    results = [done[bug.id] for bug in bugs if bug.id in done]
    facts = machine()
    versions = sorted({f"{bug.package} {bug.version}" for bug in bugs})
    result_json = {
        "benchmark": "realbugs", "model": options.model, "candidates": options.candidates, "seed": options.seed,
        "versions": versions, "bugs_made": len(bugs), "complete": len(results) == len(bugs), **summary(results),
        "machine": facts, "results": [dataclasses.asdict(r) for r in results],
    }  # fmt: skip
    out = Path(__file__).parent / "results" / f"realbugs-{Path(options.model).name}-{facts['date']}.json"
    out.write_text(json.dumps(result_json, indent=1) + "\n")
    print(json.dumps(summary(results), indent=1))
    print(f"{len(results)} of {len(bugs)} bugs have run; written to {out}")


def _in_turns(bugs: Sequence[RealBug]) -> list[RealBug]:
    """The first bug of each package, then the second: what is done at any time speaks for all packages."""
    return sorted(bugs, key=lambda bug: (int(bug.id.rpartition("-")[2]), bug.package))


if __name__ == "__main__":
    main()
