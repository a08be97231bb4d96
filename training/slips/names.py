"""Slips of names: another variable, attribute or method, a typing error, a missing `self.`, an expression
copied over."""

from __future__ import annotations

import ast
import random

from training.syntax import Parsed, Span

_FAMILIES = [
    "min max", "any all", "sorted reversed list", "append extend add insert", "len sum", "startswith endswith",
    "strip lstrip rstrip", "upper lower title capitalize", "get pop setdefault", "keys values items",
    "find index rfind", "split rsplit partition rpartition splitlines", "union intersection difference",
    "add discard remove", "floor ceil round", "isinstance issubclass", "int float str", "str repr", "encode decode",
    "read readline readlines", "hasattr getattr", "zip enumerate", "search match fullmatch findall", "join split",
    "remove pop", "bisect_left bisect_right", "abs int", "isdigit isalpha isalnum isspace", "ljust rjust center",
    "replace strip", "popleft pop", "appendleft append", "mean sum", "set list tuple", "dict list", "copy deepcopy",
    "year month day", "hour minute second", "days seconds", "first last", "start end", "width height", "left right",
    "row col", "x y", "key value", "args kwargs", "rows columns", "prev next", "update setdefault", "argmin argmax",
    "exists is_file is_dir", "parent name stem suffix", "head tail", "islower isupper", "minimum maximum",
    "zeros ones", "lower upper", "old new", "src dst", "source target", "begin end", "before after",
]  # fmt: skip
FAMILY: dict[str, list[str]] = {}
for _row in _FAMILIES:
    for _name in _row.split():
        FAMILY.setdefault(_name, []).extend(n for n in _row.split() if n != _name)


def variable(p: Parsed, rng: random.Random) -> Span | None:
    """Another name of the same piece of code, in a place that reads one."""
    used = {n.id for n in p.all(ast.Name)} | {a.arg for a in p.all(ast.arg)}
    called = {c.func.id for c in p.all(ast.Call) if isinstance(c.func, ast.Name)}
    values = sorted(used - called)
    for node in p.pick(rng, ast.Name):
        assert isinstance(node, ast.Name)
        others = [v for v in values if v != node.id]
        if isinstance(node.ctx, ast.Load) and node.id not in called and others:
            return p.replace(node, rng.choice(others))
    return None


def attribute(p: Parsed, rng: random.Random) -> Span | None:
    """Another attribute or method that the code uses somewhere."""
    names = sorted({n.attr for n in p.all(ast.Attribute)})
    for node in p.pick(rng, ast.Attribute):
        assert isinstance(node, ast.Attribute)
        if others := [n for n in names if n != node.attr]:
            return _rename_attribute(p, node, rng.choice(others))
    return None


def family(p: Parsed, rng: random.Random) -> Span | None:
    """A name of the same family: min for max, strip for lstrip."""
    for node in p.pick(rng, ast.Attribute, ast.Name):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        if name in FAMILY and (isinstance(node, ast.Attribute) or isinstance(getattr(node, "ctx", None), ast.Load)):
            other = rng.choice(FAMILY[name])
            return _rename_attribute(p, node, other) if isinstance(node, ast.Attribute) else p.replace(node, other)
    return None


def self_await(p: Parsed, rng: random.Random) -> Span | None:
    """A missing `self.` or `await`."""
    for node in p.pick(rng, ast.Await, ast.Attribute):
        if isinstance(node, ast.Await):
            return p.replace(node, p.text(node.value))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            return p.replace(node, node.attr)
    return None


def typo(p: Parsed, rng: random.Random) -> Span | None:
    """A letter dropped, doubled or swapped in a name, or an s too many or too few."""
    for node in p.pick(rng, ast.Name, ast.Attribute):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        if len(name) < 4:
            continue
        at = rng.randrange(1, len(name) - 1)
        dropped, swapped_two = name[:at] + name[at + 1 :], name[:at] + name[at + 1] + name[at] + name[at + 2 :]
        plural = name[:-1] if name.endswith("s") else name + "s"
        wrong = rng.choice([dropped, swapped_two, name[: at + 1] + name[at:], plural])
        if wrong != name:
            return _rename_attribute(p, node, wrong) if isinstance(node, ast.Attribute) else p.replace(node, wrong)
    return None


def copied(p: Parsed, rng: random.Random) -> Span | None:
    """An expression written over by another one of the same code, as after copy and paste."""
    kinds = (ast.Call, ast.Attribute, ast.BinOp, ast.Subscript, ast.Compare, ast.Name)
    pool = [n for k in kinds for n in p.all(k) if len(p.text(n)) < 60 and b"\n" not in p.text(n)]
    for node in p.pick(rng, *kinds[:5]):
        parent = p.parents.get(node)
        if (
            isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            and pool
            and not (isinstance(parent, ast.Call) and parent.func is node)
        ):
            other = p.text(rng.choice(pool))
            if other != p.text(node):
                return p.replace(node, other)
    return None


def _rename_attribute(p: Parsed, node: ast.Attribute, name: str) -> Span:
    end = p.span(node)[1]
    return Span(end - len(node.attr.encode()), end, name.encode())
