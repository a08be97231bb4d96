"""Bug classes in which something is wrong: an operator, a name, a constant, an order, a line too many."""

from __future__ import annotations

import ast
import random

from training.syntax import Maker, Parsed, Span

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

_COMPARE = {
    ast.Lt: ("<", "<= > >="), ast.LtE: ("<=", "< >= =="), ast.Gt: (">", ">= < <="), ast.GtE: (">=", "> <= =="),
    ast.Eq: ("==", "!= >= <="), ast.NotEq: ("!=", "== <"),
}  # fmt: skip
_WORD_COMPARE = {ast.Is: (b"is", b"is not"), ast.In: (b"in", b"not in")}
_ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+ / **"), ast.Div: ("/", "// *"),
    ast.FloorDiv: ("//", "/ %"), ast.Mod: ("%", "// /"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "| ^"),
    ast.BitOr: ("|", "& ^"), ast.BitXor: ("^", "& |"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
}  # fmt: skip
_WRAPPERS = [
    ("list(", ")"), ("str(", ")"), ("len(", ")"), ("not ", ""), ("-", ""), ("sorted(", ")"), ("int(", ")"),
    ("abs(", ")"), ("set(", ")"), ("[", "]"), ("(", ",)"), ("", "[0]"), ("", ".strip()"), ("", " + 1"), ("", " - 1"),
    ("", "()"), ("", "[1:]"),
]  # fmt: skip
_EXCEPTIONS = [
    "ValueError",
    "TypeError",
    "KeyError",
    "IndexError",
    "AttributeError",
    "RuntimeError",
    "OSError",
    "StopIteration",
    "Exception",
]


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


def _rename_attribute(p: Parsed, node: ast.Attribute, name: str) -> Span:
    end = p.span(node)[1]
    return Span(end - len(node.attr.encode()), end, name.encode())


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


def other_constant(value: object, rng: random.Random) -> str | None:
    """The text of a near but different constant; None for kinds that have none."""
    if isinstance(value, bool):
        return str(not value)
    if value is None:
        return rng.choice(["0", "False", "True", "[]", "''"])
    if isinstance(value, int) and abs(value) < 10**9:
        near = [value + 1, value - 1, value + 1, value - 1, 0, 1, 2, -value, value * 10, value * 2, value // 2]
        picked = rng.choice([v for v in near if v != value])
        return str(picked) if picked >= 0 else f"({picked})" if rng.random() < 0.2 else str(picked)
    if isinstance(value, float) and abs(value) < 1e9:
        picked_float = rng.choice([value + 1, value * 10, value / 10, value * 2, 1 - value, -value, 0.0, 1.0])
        return repr(round(picked_float, 9)) if picked_float != value else None
    return None


def constant(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Constant):
        assert isinstance(node, ast.Constant)
        text = None if node.value is None else other_constant(node.value, rng)
        if text is not None and not (text.startswith("-") and isinstance(p.parents.get(node), ast.Constant)):
            return p.replace(node, text)
    return None


def comparison(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Compare):
        assert isinstance(node, ast.Compare)
        operands = [node.left, *node.comparators]
        at = rng.randrange(len(node.ops))
        operator, left, right = node.ops[at], operands[at], operands[at + 1]
        if type(operator) in _COMPARE:
            old, new = _COMPARE[type(operator)]
            span = p.between(left, right, old.encode(), rng.choice(new.split()).encode())
        elif type(operator) in _WORD_COMPARE:
            plain, negated = _WORD_COMPARE[type(operator)]
            span = p.between(left, right, plain, negated)
        elif isinstance(operator, ast.IsNot):
            span = p.between(left, right, b"is not", b"is")
        else:
            span = p.between(left, right, b"not in", b"in")
        if span is not None:
            return span
    return None


def arithmetic(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.BinOp):
        assert isinstance(node, ast.BinOp)
        if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            continue
        if type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            span = p.between(node.left, node.right, old.encode(), rng.choice(new.split()).encode())
            if span is not None:
                return span
    return None


def boolean(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.BoolOp):
        assert isinstance(node, ast.BoolOp)
        at = rng.randrange(len(node.values) - 1)
        old, new = (b"and", b"or") if isinstance(node.op, ast.And) else (b"or", b"and")
        if span := p.between(node.values[at], node.values[at + 1], old, new):
            return span
    return None


def condition(p: Parsed, rng: random.Random) -> Span | None:
    """A test negated, or its negation dropped, or replaced by a part of it."""
    for node in p.pick(rng, ast.If, ast.While, ast.IfExp, ast.UnaryOp):
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Not):
                return p.replace(node, p.text(node.operand))
            continue
        test = node.test  # type: ignore[attr-defined]
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return p.replace(test, p.text(test.operand))
        text = p.text(test)
        simple = isinstance(test, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
        return p.replace(test, b"not " + (text if simple else b"(" + text + b")"))
    return None


def assignment(p: Parsed, rng: random.Random) -> Span | None:
    """`+=` for `=` and the other way round, or another augmented operator."""
    for node in p.pick(rng, ast.AugAssign, ast.Assign):
        if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            other = rng.choice(["=", f"{new.split()[0]}="])
            return p.between(node.target, node.value, f"{old}=".encode(), other.encode())
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp | ast.Call):
            return p.between(node.targets[0], node.value, b"=", b"+=")
    return None


def swapped(p: Parsed, rng: random.Random) -> Span | None:
    """Two neighbours in the wrong order: arguments, operands, elements, the branches of a conditional expression."""
    for node in p.pick(rng, ast.Call, ast.BinOp, ast.Tuple, ast.IfExp, ast.Dict, ast.Compare, ast.Subscript):
        pair: tuple[ast.AST, ast.AST] | None = None
        if isinstance(node, ast.Call | ast.Tuple):
            items = node.args if isinstance(node, ast.Call) else node.elts
            if len(items) > 1:
                at = rng.randrange(len(items) - 1)
                pair = items[at], items[at + 1]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow):
            pair = node.left, node.right
        elif isinstance(node, ast.IfExp):
            pair = node.body, node.orelse
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.Lt | ast.Gt):
            pair = node.left, node.comparators[0]
        if pair is not None and p.text(pair[0]) != p.text(pair[1]):
            (start, middle), (after, end) = p.span(pair[0]), p.span(pair[1])
            if start < middle <= after < end and b"\n" not in p.data[start:end]:
                return Span(start, end, p.text(pair[1]) + p.data[middle:after] + p.text(pair[0]))
    return None


def index(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Subscript):
        assert isinstance(node, ast.Subscript)
        at = node.slice
        if isinstance(at, ast.Constant) and isinstance(at.value, int):
            return p.replace(
                at, rng.choice([t for t in ("0", "1", "-1", "2", str(at.value + 1)) if t != str(at.value)])
            )
        if isinstance(at, ast.UnaryOp) and isinstance(at.operand, ast.Constant):
            return p.replace(at, rng.choice(["0", "1", p.text(at.operand).decode()]))
        if isinstance(at, ast.BinOp):
            return p.replace(at, p.text(at.left))
        if isinstance(at, ast.Name):
            return p.replace(at, at.id + rng.choice([" + 1", " - 1"]))
    return None


def slice_bound(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Slice):
        assert isinstance(node, ast.Slice)
        lower, upper = (p.text(n).decode() if n is not None else "" for n in (node.lower, node.upper))
        start, end = p.span(node)
        others = {(upper, lower), (lower, ""), ("", upper), ("1", upper), (lower, "-1"), (f"{lower or 0} + 1", upper)}
        if upper:
            others |= {(lower, f"{upper} - 1"), (lower, f"{upper} + 1")}
        texts = sorted({f"{a}:{b}" for a, b in others} - {f"{lower}:{upper}"})
        step = p.data[start:end].count(b":") > 1
        if not step:
            return Span(start, end, rng.choice(texts).encode())
    return None


def range_bound(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Call):
        assert isinstance(node, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "range" and node.args and not node.keywords:
            args = [p.text(a).decode() for a in node.args]
            at = rng.randrange(len(args))
            changed = args.copy()
            changed[at] = rng.choice([f"{args[at]} - 1", f"{args[at]} + 1"])
            options = [changed, ["1", args[-1]] if len(args) == 1 else args[1:], args[:-1] or changed]
            start, end = p.span(node.args[0])[0], p.span(node.args[-1])[1]
            return Span(start, end, ", ".join(rng.choice(options)).encode())
    return None


def default(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.arguments):
        assert isinstance(node, ast.arguments)
        values = [d for d in [*node.defaults, *node.kw_defaults] if isinstance(d, ast.Constant)]
        if values and (text := other_constant((chosen := rng.choice(values)).value, rng)):
            return p.replace(chosen, text)
    return None


def returned(p: Parsed, rng: random.Random) -> Span | None:
    names = sorted({n.id for n in p.all(ast.Name)})
    for node in p.pick(rng, ast.Return):
        assert isinstance(node, ast.Return)
        if node.value is not None:
            inner = [c for c in ast.walk(node.value) if isinstance(c, ast.expr) and c is not node.value]
            texts = [*rng.sample(names, min(2, len(names))), "None", "not " + p.text(node.value).decode()]
            if inner and not isinstance(node.value, ast.JoinedStr):
                texts.append(p.text(rng.choice(inner)).decode())
            return p.replace(node.value, rng.choice(texts))
    return None


def exception(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.ExceptHandler, ast.Raise):
        kind = node.type if isinstance(node, ast.ExceptHandler) else node.exc  # type: ignore[attr-defined]
        kind = kind.func if isinstance(kind, ast.Call) else kind
        if isinstance(kind, ast.Name):
            return p.replace(kind, rng.choice([e for e in _EXCEPTIONS if e != kind.id]))
    return None


def loop_control(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Break, ast.Continue):
        return p.replace(node, rng.choice(["continue", "pass"] if isinstance(node, ast.Break) else ["break", "pass"]))
    return None


def string(p: Parsed, rng: random.Random) -> Span | None:
    texts = sorted({p.text(c) for c in p.all(ast.Constant) if isinstance(c.value, str)})
    for node in p.pick(rng, ast.Constant):
        assert isinstance(node, ast.Constant)
        text = p.text(node)
        if not isinstance(node.value, str) or b"\n" in text or isinstance(p.parents.get(node), ast.Expr):
            continue
        inside = text[1:-1]
        options = [t for t in texts if t != text and b"\n" not in t]
        if len(inside) > 1 and b"\\" not in inside:
            options += [
                text[:1] + inside[1:] + text[-1:],
                text[:1] + inside[:-1] + text[-1:],
                text[:1] + inside.swapcase() + text[-1:],
            ]
        elif not inside:
            options.append(text[:1] + b" " + text[-1:])
        if options:
            return p.replace(node, rng.choice(options))
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


def wrapping(p: Parsed, rng: random.Random) -> Span | None:
    """A call or operator too many around an expression."""
    for node in p.pick(rng, ast.Name, ast.Attribute, ast.Call, ast.Subscript):
        if isinstance(getattr(node, "ctx", ast.Load()), ast.Load) and not isinstance(
            p.parents.get(node), ast.Expr | ast.Attribute
        ):
            parent = p.parents.get(node)
            if isinstance(parent, ast.Call) and parent.func is node:
                continue
            before, after = rng.choice(_WRAPPERS)
            return p.replace(node, before.encode() + p.text(node) + after.encode())
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


def added_line(p: Parsed, rng: random.Random) -> Span | None:
    """A line too many: a statement repeated elsewhere, an early exit, a value reset."""
    statements = [
        s for k in (ast.Assign, ast.AugAssign, ast.Expr, ast.Return) for s in p.all(k) if b"\n" not in p.text(s)
    ]
    statements = [s for s in statements if not isinstance(getattr(s, "value", None), ast.Constant)]
    for node in p.pick(rng, ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.If, ast.For):
        start, _ = p.span(node)
        line_start, _ = p.lines(p.line(node), 1)
        indent = p.data[line_start:start]
        if indent.strip() or isinstance(p.parents.get(node), ast.Module | ast.ClassDef):
            continue
        names = sorted({n.id for n in p.all(ast.Name) if isinstance(n.ctx, ast.Store)})
        options = [b"return", b"return None"] + ([p.text(rng.choice(statements))] * 3 if statements else [])
        if names:
            options += [f"{rng.choice(names)} = {rng.choice(['None', '0', '[]', '1'])}".encode()] * 2
        return Span(line_start, line_start, indent + rng.choice(options) + b"\n")
    return None


def parentheses(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.BinOp, ast.BoolOp):
        start, end = p.span(node)
        if (
            isinstance(p.parents.get(node), ast.BinOp | ast.BoolOp | ast.UnaryOp)
            and p.data[start - 1 : start] == b"("
            and p.data[end : end + 1] == b")"
        ):
            return Span(start - 1, end + 1, p.data[start:end])
    return None


SLIPS: dict[str, Maker] = {
    "variable": variable, "attribute": attribute, "family": family, "constant": constant, "comparison": comparison,
    "arithmetic": arithmetic, "boolean": boolean, "condition": condition, "assignment": assignment, "swapped": swapped,
    "index": index, "slice": slice_bound, "range": range_bound, "default": default, "returned": returned,
    "exception": exception, "loop_control": loop_control, "string": string, "self_await": self_await, "typo": typo,
    "wrapping": wrapping, "copied": copied, "added_line": added_line, "parentheses": parentheses,
}  # fmt: skip
