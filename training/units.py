"""Units of training: functions, methods, small classes and windows of a module, at most 3000 characters long."""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from training.quality import is_test_path

MAX_CHARS = 3000
MIN_CHARS = 60

DOWN_WEIGHTED = {"transformers": 0.4, "diffusers": 0.4, "torch-geometric": 0.7, "langchain-community": 0.6, "timm": 0.6}
UP_WEIGHTED = {
    "python-stdlib": 1.7, "networkx": 1.7, "sympy": 1.5, "mpmath": 1.7, "scipy": 1.5, "numpy": 1.5,
    "algorithms": 2.5, "pygorithm": 2.5, "pyformlang": 1.7, "galois": 1.7, "nltk": 1.5, "statsmodels": 1.3,
    "construct": 1.5, "bitstring": 1.5, "uncertainties": 1.5, "arrow": 1.5, "pendulum": 1.5, "markdown2": 1.5,
    "simpy": 1.5, "marshmallow": 1.3, "mesa": 1.3,
}  # fmt: skip


class Unit(NamedTuple):
    """Lines [first, last] of a module, counted from 0.

    `name` is the qualified name, "" for a window; `docstring` its lines as (first, last) or None; `weight` how often
    the unit is visited relative to others; `digest` identifies its text without white space, and a unit that shares one
    of its `bands` (`training.near`) is nearly the same.
    """

    module: int
    first: int
    last: int
    name: str
    docstring: tuple[int, int] | None
    weight: float
    digest: bytes
    bands: tuple[int, ...] = ()


class Outline(NamedTuple):
    """The units of one module and the qualified names of its functions, in order."""

    units: list[Unit]
    functions: list[str]


def outline(module: int, package: str, path: str, text: str) -> Outline:
    """Cut a module. Raises SyntaxError or ValueError for text that does not parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    lines = text.split("\n")
    scale = DOWN_WEIGHTED.get(package, 1.0) * UP_WEIGHTED.get(package, 1.0) * (0.3 if is_test_path(path) else 1.0)
    units: list[Unit] = []
    functions: list[str] = []

    def add(node: ast.stmt, last: int, name: str, weight: float) -> None:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        chunk = lines[first : last + 1]
        size = sum(map(len, chunk)) + len(chunk)
        if MIN_CHARS <= size <= MAX_CHARS and len(chunk) > 1:
            digest = hashlib.blake2b("".join("".join(chunk).split()).encode("utf-8", "replace"), digest_size=8).digest()
            units.append(Unit(module, first, last, name, docstring_lines(node), weight * scale, digest))

    for node, prefix in _definitions(tree):
        name = prefix + node.name
        last = (node.end_lineno or node.lineno) - 1
        if isinstance(node, ast.ClassDef):
            add(node, last, name, 0.4)
        else:
            functions.append(name)
            add(node, last, name, _function_weight(node))
    for first_node, last in _windows(tree, lines):
        add(first_node, last, "", 0.5)
    return Outline(units, functions)


def _definitions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, str]]:
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, prefix = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield child, prefix
                stack.append((child, f"{prefix}{child.name}."))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child, prefix
            elif isinstance(child, ast.If | ast.Try | ast.With):
                stack.append((child, prefix))


def _function_weight(node: ast.AST) -> float:
    """More for loops and operators, less for what has nearly nothing to break."""
    loops = operators = size = 0
    for child in ast.walk(node):
        size += 1
        if isinstance(child, ast.For | ast.While | ast.comprehension):
            loops += 1
        elif isinstance(child, ast.BinOp | ast.Compare | ast.Subscript | ast.BoolOp | ast.AugAssign):
            operators += 1
    if size < 20:
        return 0.25
    if loops and operators >= 3 and size < 500:
        return 2.0
    return 1.3 if operators >= 3 else 1.0


def docstring_lines(node: ast.stmt) -> tuple[int, int] | None:
    """The docstring's lines when other statements follow it on lines of their own."""
    body = getattr(node, "body", [])
    if len(body) > 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        first, last = body[0].lineno - 1, (body[0].end_lineno or body[0].lineno) - 1
        if isinstance(body[0].value.value, str) and node.lineno - 1 < first and last < body[1].lineno - 1:
            return first, last
    return None


def _windows(tree: ast.Module, lines: list[str]) -> Iterator[tuple[ast.stmt, int]]:
    """Runs of top-level statements of up to 3000 characters that hold more than imports and definitions."""
    start: ast.stmt | None = None
    size, last, plain = 0, -1, 0
    for node in tree.body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        end = (node.end_lineno or node.lineno) - 1
        chars = sum(len(line) + 1 for line in lines[first : end + 1])
        if start is not None and size + chars > MAX_CHARS * 0.9:
            if plain >= 2:
                yield start, last
            start, size, plain = None, 0, 0
        if chars > MAX_CHARS * 0.9:
            continue
        start, last, size = start or node, end, size + chars
        plain += isinstance(node, ast.Assign | ast.If | ast.For | ast.Expr | ast.FunctionDef)
    if start is not None and plain >= 2:
        yield start, last
