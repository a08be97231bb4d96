"""Does `m3 fix` repair every issue of the bundled examples?

    python -m benchmarks.examples            # each on a copy under git, model nano

Each issue is one process, as a person would start it. The result is one JSON file under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.heldout import machine

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("", "runtime", "kernels", "model", "tools")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".m3", ".pytest_cache")


def run_issue(example: Path, number: str, model: str, folder: Path) -> dict[str, Any]:
    """What `m3 fix` says of one issue, on a copy in `folder`."""
    copy = folder / f"{example.name}-{number}"
    shutil.copytree(example, copy, ignore=LEFT_OUT)
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for arguments in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *arguments], cwd=copy, check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in PACKAGES),
        "M3_HOME": str(folder / "home"),
    }
    options = ["--repo", str(copy), "--issue", number, "--model", model, "--seed", "1", "--output", "json"]
    command = [sys.executable, "-m", "m3agent", "fix", *options]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    report = json.loads(done.stdout) if done.stdout.strip() else {}
    return {
        "example": example.name,
        "issue": number,
        "exit_code": done.returncode,
        "outcome": report.get("outcome", done.stderr[-300:]),
        "tried": report.get("candidates", {}).get("tried", 0),
        "duration_s": round(report.get("duration_s", 0.0), 1),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.examples", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="nano", help="as for m3 fix")
    options = parser.parse_args(argv)
    issues = sorted((ROOT / "examples").glob("*/issues/*.md"))
    results = []
    with tempfile.TemporaryDirectory(prefix="m3-examples-") as folder:
        for issue in issues:
            results.append(run_issue(issue.parents[1], issue.stem, options.model, Path(folder)))
            print(results[-1], file=sys.stderr)
    host = machine()
    out = Path(__file__).parent / "results" / f"examples-{host['date']}.json"
    out.parent.mkdir(exist_ok=True)
    fixed = sum(result["exit_code"] == 0 for result in results)
    value = {"benchmark": "examples", "model": options.model, "issues": len(results), "fixed": fixed}
    out.write_text(json.dumps({**value, "machine": host, "results": results}, indent=1) + "\n")
    print(f"{fixed} of {len(results)} issues fixed; written to {out}")


if __name__ == "__main__":
    main()
