"""The examples in docstrings as pytest tests: one test a function, with plain asserts."""

from __future__ import annotations

import ast
import builtins
import doctest
import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple


class FunctionTest(NamedTuple):
    """A function with examples: lines [first, last] of its module counted from 0, and the test made of the examples.

    `examples` are the (call, expected) pairs that the test asserts, for telling a person what is wrong.
    """

    qualname: str
    first: int
    last: int
    test_name: str
    source: str
    examples: tuple[tuple[str, str], ...]


def function_tests(text: str, import_path: str) -> Iterator[FunctionTest]:
    """A test for each function and method of a module whose docstring holds at least one checked example.

    `import_path` is the module's dotted name; the tests import from it what they use. Whether a test passes is for the
    caller to find out: an example may need what a docstring does not show.
    """
    tree = ast.parse(text)
    defined = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    defined |= {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    defined |= {alias.asname or alias.name.split(".")[0] for node in imports for alias in node.names}
    for node, qualname in _functions(tree):
        try:
            examples = doctest.DocTestParser().get_examples(ast.get_docstring(node) or "")
        except ValueError:
            continue
        made = _test_body(examples)
        if made is None:
            continue
        body, pairs = made
        used = {n.id for n in ast.walk(ast.parse(body)) if isinstance(n, ast.Name)}
        names = sorted(used & defined)
        name = "test_" + re.sub(r"\W+|_+", "_", qualname).strip("_").lower()
        lines = [f"def {name}(capsys):"]
        if names:
            lines.append(f"    from {import_path} import {', '.join(names)}\n")
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
        source = "\n".join(lines) + "\n" + textwrap.indent(body, "    ")
        yield FunctionTest(qualname, first, (node.end_lineno or node.lineno) - 1, name, source, tuple(pairs))


def _functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node, node.name
        elif isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, ast.FunctionDef):
                    yield child, f"{node.name}.{child.name}"


def _test_body(examples: list[doctest.Example]) -> tuple[str, list[tuple[str, str]]] | None:
    """Statements and asserts; None if nothing is asserted or an example cannot be written as a statement."""
    body: list[str] = []
    pairs: list[tuple[str, str]] = []
    for example in examples:
        source, want = example.source.rstrip("\n"), example.want.rstrip("\n")
        if example.options.get(doctest.SKIP):
            continue
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return None
        if example.exc_msg is not None:
            error = example.exc_msg.split(":")[0].strip().split(".")[-1]
            known = error if error in _BUILTIN_ERRORS else "Exception"
            body.append(f"import pytest\nwith pytest.raises({known}):\n{textwrap.indent(source, '    ')}")
            continue
        if not want or "..." in want or "<BLANKLINE>" in want or not _is_expression(tree):
            body.append(source)
            continue
        call = tree.body[0].value  # type: ignore[attr-defined]
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print":
            body.append(f"capsys.readouterr()\n{source}\nassert capsys.readouterr().out == {want + chr(10)!r}")
        elif _is_literal(want) and "0x" not in want:
            body.append(f"assert {_wrapped(source)} == {_wrapped(want)}")
        else:
            body.append(f"assert repr{_wrapped(source, always=True)} == {want!r}")
        pairs.append((" ".join(source.split()), want))
    return ("\n".join(body), pairs) if pairs else None


_BUILTIN_ERRORS = frozenset(name for name in dir(builtins) if name.endswith(("Error", "Iteration")))


def _is_expression(tree: ast.Module) -> bool:
    return len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def _wrapped(text: str, *, always: bool = False) -> str:
    if "#" in text:
        return f"(\n{text}\n)"
    return f"({text})" if always or "\n" in text or " " in text else text
