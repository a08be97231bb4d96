"""What `make demo` runs: the embedded model repairs a bundled example, on a copy, in front of your eyes.

usage: demo.py [EXAMPLE]        (default: inventory)
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(__file__).parent


def fingerprint(folder: Path) -> str:
    """One hash over the names and bytes of every file below a folder."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "inventory"
    example = EXAMPLES / name
    if not (example / "issues").is_dir():
        known = ", ".join(sorted(p.parent.name for p in EXAMPLES.glob("*/issues")))
        print(f"demo: there is no example {name!r}; choose one of: {known}", file=sys.stderr)
        return 2
    before = fingerprint(example)
    with tempfile.TemporaryDirectory(prefix="m3-demo-") as folder:
        copy = Path(folder) / name
        shutil.copytree(example, copy, ignore=shutil.ignore_patterns("__pycache__", ".m3", ".pytest_cache"))
        command = ["m3", "fix", "--repo", str(copy), "--issue", "1", "--model", "nano"]
        print(f"$ m3 fix --repo {name} --issue 1 --model nano\n", file=sys.stderr)
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "m3agent", *command[1:]])
        print(f"\nThat took {time.monotonic() - started:.0f} s, exit code {done.returncode}.", file=sys.stderr)
    if fingerprint(example) != before:
        print("demo: the tracked example was changed, which must never happen", file=sys.stderr)
        return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
