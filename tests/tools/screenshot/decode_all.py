"""Runs as a program of its own: decodes every hostile case, and writes a line of JSON for each.

A process of its own, because the memory that children needed at most is counted for a whole process.
"""

import base64
import json
import resource
import sys
import time

from m3_tools.screenshot.decode import decode
from m3_tools.screenshot.picture import PictureError
from tests.tools.screenshot.hostile import cases


def main() -> None:
    all_cases = list(cases())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for case in all_cases:
        start = time.monotonic()
        try:
            picture = decode(case.data, name=case.name)
            result = {"data": base64.b64encode(picture.data).decode(), "notes": picture.notes}
        except PictureError as error:
            result = {"error": str(error)}
        result |= {
            "name": case.name,
            "duration_s": time.monotonic() - start,
            "child_bytes": _bytes(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss),
            "grown_bytes": _bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
        }
        print(json.dumps(result), flush=True)


def _bytes(count: int) -> int:
    """Linux counts kilobytes, macOS bytes."""
    return count if sys.platform == "darwin" else count * 1024


if __name__ == "__main__":
    main()
