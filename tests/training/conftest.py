"""Sources for the data tests: a few modules of the running Python's own library."""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

import pytest

from training.transcript import Encoder

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
NAMES = ["textwrap", "shlex", "heapq", "bisect", "calendar", "csv", "fractions", "statistics", "configparser", "string"]


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return Encoder()


@pytest.fixture(scope="session")
def library_functions() -> list[str]:
    """The source of functions and methods of the standard library, indented as in their modules."""
    found = []
    for name in NAMES:
        text = (LIBRARY / f"{name}.py").read_text(encoding="utf-8")
        lines = text.split("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                if 60 < len(source) < 3000:
                    found.append(source)
    return found
