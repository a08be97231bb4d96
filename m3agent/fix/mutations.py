"""Small mechanical edits of a suspect function: the candidates that a writer of code tends to overlook.

Each is a one-line slip undone: another comparison, a neighbouring constant, another variable, swapped arguments, a
sibling method. They are made blindly, up to a few hundred a function; the model says how likely each is, and in that
order they are tried. Python only.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

from m3agent.fix.suspects import Suspect

MAX_MUTATIONS = 400

_COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">", ">=", "!="),
    ast.LtE: ("<", ">=", ">", "=="),
    ast.Gt: (">=", "<", "<=", "!="),
    ast.GtE: (">", "<=", "<", "=="),
    ast.Eq: ("!=", ">=", "<=", "in"),
    ast.NotEq: ("==", ">", "<"),
    ast.In: ("not in", "=="),
    ast.NotIn: ("in", "!="),
    ast.Is: ("is not", "=="),
    ast.IsNot: ("is", "!="),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, ...]] = {
    ast.Add: ("-", "*"),
    ast.Sub: ("+", "*"),
    ast.Mult: ("+", "/", "//", "**"),
    ast.Div: ("//", "*", "%"),
    ast.FloorDiv: ("/", "%", "*"),
    ast.Mod: ("//", "/", "*"),
    ast.Pow: ("*",),
    ast.LShift: (">>",),
    ast.RShift: ("<<",),
    ast.BitAnd: ("|", "^"),
    ast.BitOr: ("&", "^"),
    ast.BitXor: ("&", "|"),
}
_FAMILIES = (
    "min max sum len",
    "any all",
    "sorted reversed list set tuple",
    "int float round abs str",
    "floor ceil trunc",
    "append extend insert add",
    "add discard remove update",
    "pop popleft get",
    "append appendleft",
    "lower upper title capitalize casefold",
    "strip lstrip rstrip",
    "startswith endswith removeprefix removesuffix",
    "find rfind index rindex count",
    "split rsplit partition rpartition splitlines",
    "ljust rjust center",
    "keys values items",
    "isdigit isalpha isalnum isspace isupper islower",
    "union intersection difference symmetric_difference",
    "year month day hour minute second",
    "days seconds total_seconds",
    "first last",
    "start end stop",
    "left right",
    "setdefault get pop",
)
_SIBLINGS: dict[str, list[str]] = {}
for _family in _FAMILIES:
    for _name in _family.split():
        _SIBLINGS.setdefault(_name, []).extend(n for n in _family.split() if n != _name)


@dataclasses.dataclass(frozen=True)
class Mutation:
    """Line `line` (from 1) becomes `text`; `text` None deletes it."""

    line: int
    text: str | None

    def arguments(self, path: str) -> dict[str, str]:
        """The call of `edit_line` that makes it."""
        action = "delete" if self.text is None else "replace"
        return {"path": path, "action": action, "line": f"L{self.line}|", "text": self.text or ""}


def mutations(source: bytes, suspect: Suspect) -> list[Mutation]:
    """Single-line edits of the suspect, in the order of the code, without duplicates, at most MAX_MUTATIONS.

    Empty for what does not parse as Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    maker = _Maker(source, suspect)
    found: dict[Mutation, None] = {}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", None)
        if line is not None and suspect.first_line <= line <= suspect.last_line:
            found.update(dict.fromkeys(maker.of(node)))
    ordered = sorted(found, key=lambda m: m.line)
    return ordered[:: max(1, -(-len(ordered) // MAX_MUTATIONS))]


class _Maker:
    """Turns nodes into changed lines. Columns count bytes, as `ast` gives them."""

    def __init__(self, source: bytes, suspect: Suspect):
        self.lines = source.split(b"\n")
        self.names, self.attributes = self._vocabulary(source, suspect)

    @staticmethod
    def _vocabulary(source: bytes, suspect: Suspect) -> tuple[list[str], list[str]]:
        """Variables of the suspect and attributes that it reads, which may stand for one another."""
        names: dict[str, None] = {}
        attributes: dict[str, None] = {}
        for node in ast.walk(ast.parse(source)):
            if suspect.first_line <= getattr(node, "lineno", 0) <= suspect.last_line:
                if isinstance(node, ast.arg):
                    names[node.arg] = None
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names[node.id] = None
                elif isinstance(node, ast.Attribute):
                    attributes[node.attr] = None
        return list(names)[:12], list(attributes)[:8]

    def of(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from self._between(left, right, _COMPARISONS.get(type(op), ()))
            case ast.BinOp(left=left, op=op, right=right):
                yield from self._between(left, right, _ARITHMETIC.get(type(op), ()))
                if isinstance(right, ast.Constant):
                    yield from self._replace(node, self._text(left))  # x + 1 -> x
            case ast.BoolOp(op=op, values=[left, right]):
                yield from self._between(left, right, ("or",) if isinstance(op, ast.And) else ("and",))
                yield from self._replace(node, self._text(left))
                yield from self._replace(node, self._text(right))
            case ast.AugAssign(target=target, op=op, value=value):
                signs = [f"{sign}=" for sign in _ARITHMETIC.get(type(op), ())]
                yield from self._between(target, value, (*signs, "="))
            case ast.Assign(targets=[target], value=value):
                yield from self._between(target, value, ("+=",))
            case ast.UnaryOp(op=ast.Not(), operand=operand) | ast.UnaryOp(op=ast.USub(), operand=operand):
                yield from self._replace(node, self._text(operand))
            case ast.Constant(value=bool() as value):
                yield from self._replace(node, str(not value))
            case ast.Constant(value=int() as number):
                for other in dict.fromkeys((number + 1, number - 1, -number, 0, 1)):
                    if other != number:
                        yield from self._replace(node, str(other))
            case ast.Name(id=name, ctx=ast.Load()):
                for other_name in [*self.names, *_SIBLINGS.get(name, ())]:
                    if other_name != name:
                        yield from self._replace(node, other_name)
                if name in self.names:
                    yield from self._replace(node, f"{name} + 1")
                    yield from self._replace(node, f"{name} - 1")
            case ast.Attribute(value=value, attr=attribute):
                for other_name in [*_SIBLINGS.get(attribute, ()), *self.attributes]:
                    if other_name != attribute:
                        yield from self._replace(node, f"{self._text(value)}.{other_name}")
            case ast.Call(args=[first, second, *_]):
                yield from self._swap(first, second)
            case ast.Call(func=function, args=[argument], keywords=[]):
                yield from self._replace(node, self._text(argument))
                if isinstance(function, ast.Name):
                    yield from self._replace(node, f"{self._text(node)} - 1")
                    yield from self._replace(node, f"{self._text(node)} + 1")
            case ast.Call(func=ast.Attribute(value=value), args=[], keywords=[]):
                yield from self._replace(node, self._text(value))
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield from self._replace(test, f"not {self._text(test)}")
            case ast.Return(value=ast.expr() as value):
                yield from self._replace(value, f"not {self._text(value)}")
            case ast.Break():
                yield from self._replace(node, "continue")
            case ast.Continue():
                yield from self._replace(node, "break")
        if isinstance(node, ast.Expr | ast.Assign | ast.AugAssign) and node.lineno == node.end_lineno:
            yield Mutation(node.lineno, None)

    def _text(self, node: ast.expr) -> str:
        """The source of a node that lies on one line, else empty, which `_replace` refuses."""
        if node.lineno != node.end_lineno:
            return ""
        return self.lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode("utf-8", "replace")

    def _replace(self, node: ast.expr | ast.stmt, text: str) -> Iterator[Mutation]:
        if text and node.lineno == node.end_lineno and node.end_col_offset is not None:
            yield self._line(node.lineno, node.col_offset, node.end_col_offset, text)

    def _between(self, left: ast.expr, right: ast.expr, signs: tuple[str, ...] | list[str]) -> Iterator[Mutation]:
        """The operator between two operands on one line. Parentheses around an operand stay where they are."""
        if left.end_lineno != right.lineno or left.end_col_offset is None:
            return
        between = self.lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode("utf-8", "replace")
        sign = between.strip("() ")
        start = between.find(sign)
        for other in signs:
            if sign and other != sign:
                text = between[:start] + other + between[start + len(sign) :]
                yield self._line(right.lineno, left.end_col_offset, right.col_offset, text)

    def _swap(self, first: ast.expr, second: ast.expr) -> Iterator[Mutation]:
        one, two = self._text(first), self._text(second)
        if one and two and first.lineno == second.lineno and first.end_col_offset and second.end_col_offset:
            line = self.lines[first.lineno - 1]
            between = line[first.end_col_offset : second.col_offset].decode("utf-8", "replace")
            yield self._line(first.lineno, first.col_offset, second.end_col_offset, f"{two}{between}{one}")

    def _line(self, number: int, start: int, end: int, text: str) -> Mutation:
        line = self.lines[number - 1]
        changed = line[:start] + text.encode() + line[end:]
        return Mutation(number, changed.decode("utf-8", "replace").rstrip("\r"))
