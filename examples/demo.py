"""What `make demo` runs: the embedded model repairs a bundled example, on a copy, in front of your eyes.

usage: demo.py [EXAMPLE]        (default: inventory)
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from pathlib import Path

from m3agent.commands.tour import repair_example

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
        started = time.monotonic()
        code = repair_example(example, Path(folder))
        print(f"\nThat took {time.monotonic() - started:.0f} s, exit code {code}.", file=sys.stderr)
    if fingerprint(example) != before:
        print("demo: the tracked example was changed, which must never happen", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
