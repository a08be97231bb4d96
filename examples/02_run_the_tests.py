"""Run a repository's tests and read the outcome as data: what failed, where, and which functions the failing tests ran."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from m3_tools.run_tests import run_tests


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(shutil.copytree(Path(__file__).parent / "inventory", Path(folder) / "inventory")).resolve()
        report = await run_tests(root, trace=True)
    for failure in report.failures:
        print(f"{failure.test_id}: {failure.error_type}")
    for path, functions in report.executed.items():
        print(f"ran {path}: {', '.join(functions)}")
    assert report.failures
    assert report.could_start


asyncio.run(main())
