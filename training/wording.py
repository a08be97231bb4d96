"""The words around a bug: issues as people write them, what a failing test prints, the closing sentence.

Everything is made from names of the code and from the kind of the bug. An issue often says little or nothing, as in
life.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_SUBJECTS = [
    "{f} gives a wrong result", "Wrong result from {f}", "{f} does not work as expected", "{f} is broken",
    "Bug in {f}", "Problem with {f}", "{f} fails", "{words} is wrong", "{words} does not work",
    "Unexpected behaviour of {words}", "Something is off with {words}", "Error when using {f}",
    "{f} misbehaves since the last release", "{f}: wrong value", "Tests fail", "A test fails", "Failing test",
    "{words}: not what I expected", "Regression in {f}", "{e} in {f}", "I get {e} from {f}",
    "{module}: {words} is off", "Strange output of {words}", "{words} looks wrong to me",
    "{f} returns the wrong thing in some cases", "Edge case in {words}", "{words} stopped working",
    "Cannot use {f} any more",
]  # fmt: skip
_BODIES = [
    "When I call {f}, the result is not what the documentation says.", "It worked in an earlier version.",
    "The tests for {words} fail on my machine.", "Please have a look at {module}.", "I expected {a} but got {b}.",
    "Expected: {a}\nActual: {b}", "Steps to reproduce: call {f} and look at what comes back.",
    "It happens every time.", "It only happens for some inputs; others are fine.",
    "With other arguments it seems to be right.", "Calling {f} raises {e}.",
    "There is an exception ({e}) where none should be.", "I looked at {module} but did not see why.",
    "We noticed this on Monday when the numbers did not add up.", "{words} used to be right, and now it is not.",
    "I think the mistake is somewhere in {f}.", "Not sure where it comes from, maybe {module}.",
    "See the failing test.", "The value is off by one in the cases that I tried.",
    "The wrong branch seems to be taken.", "Something is missing from it.",
    "One of our customers reported that {words} gives {b} where it should give {a}.",
    "How can I help to get this fixed?", "Thanks for the project, it is very useful otherwise.",
    "For empty input it is fine.", "It hits the boundary case, I think.",
    "The same thing happens with the current main branch.", "Python 3.11, Linux.", "This breaks our nightly job.",
    "An argument seems to be ignored.", "The default does not seem to be used.", "The order is wrong.",
    "It returns {b}.",
]  # fmt: skip


def issue(rng: random.Random, names: Sequence[str], module: str, error: str) -> str:
    """A user's message: sometimes empty of content, sometimes with names, values or the error. `names[0]` is the
    function."""
    name = names[0] if names and rng.random() < 0.8 else (rng.choice(list(names)) if names else module)
    short = name.rsplit(".", 1)[-1].strip("_") or name
    fields = {
        "f": rng.choice([name, f"`{name}`", f"{short}()", f"`{short}`", short]),
        "words": " ".join(_words(short)),
        "module": rng.choice([module, f"`{module}`", module.rsplit("/", 1)[-1]]),
        "e": error or "an error",
        "a": value(rng),
        "b": value(rng),
    }
    style = rng.random()
    if style < 0.1:
        return rng.choice(
            ["The tests fail.", "Fix the failing test.", "Please fix the tests", "A test is red.", "CI is red"]
        )
    title = rng.choice(_SUBJECTS).format(**fields)
    first = title.split(" ", 1)[0].rstrip(":,")  # a name or a path keeps its own letters
    title = title[:1].upper() + title[1:] if rng.random() < 0.7 and first.isalpha() else title
    if style < 0.28:
        return title
    if style < 0.55:
        return f"{title}\n\n{_story(rng, fields)}"
    bodies = _BODIES if error else [body for body in _BODIES if "{e}" not in body]
    sentences = [s.format(**fields) for s in rng.sample(bodies, rng.choice([1, 1, 2, 2, 3, 4]))]
    return f"{title}\n\n{rng.choice([' ', ' ', chr(10)]).join(sentences)}"


def _story(rng: random.Random, fields: dict[str, str]) -> str:
    """A person's account in sentences that name no code, or hardly any."""
    sentences = [rng.choice(_WHEN), rng.choice(_WHAT), rng.choice(_BUT)]
    if rng.random() < 0.4:
        sentences.append(rng.choice(_BODIES))
    return " ".join(sentences[: rng.randrange(1, 5)]).format(**fields)


_WHEN = [
    "Every Friday I run this on our list.", "I use the library in a small script.", "We upgraded last week.",
    "I set the limit to {a}.", "In our project we have {a} of them.", "After the import I look at the {words}.",
    "My colleague showed me how to do this.", "I started with {a} and then added {b}.",
    "On the command line I typed {a}.", "With the settings of the example,", "Our users enter values such as {a}.",
    "On 15 May I tried it with {a}.",
]  # fmt: skip
_WHAT = [
    "Then I see {b}, not {a}.", "The result was {b}.", "It says {b} where I would expect {a}.",
    "The last one is left out.", "One of them is missing in the output.", "The first is counted twice.",
    "Nothing comes back.", "It goes one too far.", "It takes the wrong one of the two.", "It stops too early.",
    "It ends with {e}.", "The {words} is not what I asked for.", "Some lines stick out by one character.",
    "It is refused although it should be allowed.", "The sum is too high.", "The order of the two is turned around.",
    "It also accepts what it should refuse.", "The text has a space too many.",
]  # fmt: skip
_BUT = [
    "Everything else is fine.", "With {a} it is right.", "Larger values are right.",
    "It should be {a}, as the page says.", "That is not what the description promises.",
    "For a single one it never happens.", "The old version did this well.", "I would expect {a}.",
    "Short ones are fine, long ones are not.", "I can live with it but it is confusing.",
]  # fmt: skip


def _words(name: str) -> list[str]:
    return [w.lower() for w in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)] or [name]


def value(rng: random.Random, depth: int = 0) -> str:
    """A Python literal such as a test would compare."""
    kind = rng.randrange(9 if depth < 2 else 6)
    if kind == 0:
        return str(rng.choice([0, 1, 2, 3, -1, rng.randrange(100), rng.randrange(10_000)]))
    if kind == 1:
        return rng.choice(["True", "False", "None"])
    if kind == 2:
        return repr(rng.choice(_WORDS) + rng.choice(["", " ", "_", "-"]) + rng.choice(_WORDS))
    if kind == 3:
        return repr(round(rng.uniform(-10, 100), rng.choice([1, 2, 3])))
    if kind in (4, 5):
        return repr(rng.choice(_WORDS)[: rng.randrange(9)])
    items = [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return f"[{', '.join(items)}]"
    if kind == 7:
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    return "{" + ", ".join(f"{rng.choice(_WORDS)!r}: {item}" for item in items) + "}"


_WORDS_TEXT = """
alpha beta name item first red blue size total path user node key left right open value text line page data
file month day hour hello world a b c x y foo bar baz spam egg north south cat dog apple pear
"""
_WORDS = _WORDS_TEXT.split()

SENTENCES = [
    "Fixed {f} in {p}; the tests pass.",
    "The mistake was in {f}: line {n} of {p} is corrected, and all tests pass now.",
    "{f} is repaired and the failing test passes.", "I changed line {n} of {p}; all tests pass.",
]  # fmt: skip

STILL_FAILING = [
    "I changed line {n} of {p}, but the tests still fail.", "The tests still fail after the change in {f}.",
    "Not fixed: tests fail after my change of line {n} in {p}.",
]  # fmt: skip

_CRASHES = {
    "typo": ["NameError", "AttributeError"], "self_await": ["NameError", "TypeError", "AttributeError"],
    "attribute": ["AttributeError", "TypeError"], "family": ["AttributeError", "TypeError"],
    "dropped_argument": ["TypeError", "IndexError", "KeyError"], "dropped_wrapper": ["TypeError", "AttributeError"],
    "dropped_expression": ["TypeError", "AttributeError"], "wrapping": ["TypeError", "AttributeError"],
    "deleted_line": ["UnboundLocalError", "NameError", "KeyError", "AttributeError"],
    "index": ["IndexError", "KeyError"], "range": ["IndexError"],
    "initial_value": ["TypeError", "AttributeError", "NameError"], "swapped": ["TypeError"],
    "returned": ["TypeError", "AttributeError"], "dropped_return": ["TypeError", "AttributeError"],
    "condition": ["TypeError", "KeyError", "AttributeError", "ValueError"],
    "variable": ["TypeError", "AttributeError"],
    "dropped_condition": ["TypeError", "KeyError", "IndexError", "ValueError"],
    "copied": ["TypeError", "AttributeError"], "added_line": ["TypeError", "UnboundLocalError", "AttributeError"],
    "exception": ["KeyError", "ValueError", "OSError"], "slice": ["IndexError", "ValueError"],
    "constant": ["IndexError", "ValueError"], "arithmetic": ["TypeError", "IndexError"],
}  # fmt: skip
_TYPES_TEXT = """
int str list dict tuple NoneType float bool set bytes function generator
"""
_TYPES = _TYPES_TEXT.split()


def error_name(rng: random.Random, kind: str) -> str:
    """The exception of a failure, "" for one of an assertion; a crash is more likely for kinds that break types."""
    kinds = _CRASHES.get(kind.split("+")[0])
    if kinds is None or rng.random() < 0.5:
        return ""
    return rng.choice(kinds)


def error_lines(rng: random.Random, error: str, name: str, identifiers: Sequence[str]) -> list[str]:
    """What the runner prints of the error, at most six lines. `identifiers` are names near the damaged line."""
    word = rng.choice(list(identifiers)) if identifiers else name
    one, two = rng.sample(_TYPES, 2)
    if error == "NameError":
        return [f"NameError: name '{word}' is not defined"]
    if error == "UnboundLocalError":
        return [f"UnboundLocalError: cannot access local variable '{word}' where it is not associated with a value"]
    if error == "AttributeError":
        return [f"AttributeError: {rng.choice([repr(one), repr('NoneType')])} object has no attribute '{word}'"]
    if error == "KeyError":
        return [f"KeyError: {rng.choice([repr(word), value(rng, 2)])}"]
    if error == "IndexError":
        return [f"IndexError: {rng.choice(['list', 'tuple', 'string', 'list assignment'])} index out of range"]
    if error == "TypeError":
        forms = [
            f"'{one}' object is not {rng.choice(['callable', 'iterable', 'subscriptable'])}",
            f"unsupported operand type(s) for {rng.choice(['+', '-', '*', '/', '%'])}: '{one}' and '{two}'",
            f"'{rng.choice(['<', '>', '<=', '>='])}' not supported between instances of '{one}' and '{two}'",
            f"{word}() missing 1 required positional argument: '{rng.choice(list(identifiers) or [word])}'",
            f"{word}() takes {rng.randrange(1, 4)} positional arguments but {rng.randrange(4, 6)} were given",
            f"can only concatenate {rng.choice(['str', 'list'])} (not \"{two}\") to {rng.choice(['str', 'list'])}",
            f"object of type '{one}' has no len()", f"cannot unpack non-iterable {one} object",
        ]  # fmt: skip
        return [f"TypeError: {rng.choice(forms)}"]
    if error:
        return [f"{error}: {rng.choice([word, value(rng, 2), 'invalid ' + word, word + ' must be positive'])}"]
    return _assertion(rng, name.rsplit(".", 1)[-1])


def _assertion(rng: random.Random, short: str) -> list[str]:
    """A failed assertion as pytest explains it: the compared values, where they come from, how they differ."""
    right = value(rng)
    left = near(rng, right) if rng.random() < 0.7 else value(rng)
    arguments = ", ".join(value(rng, 2) for _ in range(rng.randrange(3)))
    style = rng.random()
    if style < 0.1:
        return [f"Failed: DID NOT RAISE <class '{rng.choice(['ValueError', 'TypeError', 'KeyError', 'IndexError'])}'>"]
    if style < 0.25:
        lines = [f"AssertionError: assert {rng.choice(['False', 'False', 'not True', 'None'])}"]
        left = "False"
    else:
        lines = [f"AssertionError: assert {left} {rng.choice(['==', '==', '==', '==', 'in', 'is', '<', '!='])} {right}"]
    if rng.random() < 0.6:
        lines.append(f" +  where {left} = {short}({arguments})")
        if rng.random() < 0.3:
            owner = f"{rng.choice(_WORDS).title()}({rng.choice(_WORDS)}={value(rng, 2)})"
            lines.append(f" +    where {short} = {owner}.{short}")
    elif left.startswith(("[", "(", "{")):
        lines += _difference(rng, left, right)
    elif left.startswith("'"):
        lines += ["  ", f"  - {right[1:-1]}", f"  + {left[1:-1]}"][rng.randrange(2) :]
    return lines


def _difference(rng: random.Random, left: str, right: str) -> list[str]:
    first = rng.choice(
        [f"  At index {rng.randrange(3)} diff: {value(rng, 2)} != {value(rng, 2)}"]
        + [f"  {side} contains one more item: {value(rng, 2)}" for side in ("Left", "Right")]
    )
    full = [
        "  Full diff (-: missing in left side, +: extra in left side)",
        *([f"  + {left}"] if rng.random() < 0.5 else []),
        f"  - {right}",
    ]
    return [first, *full][: rng.randrange(1, 5)]


def near(rng: random.Random, text: str) -> str:
    """A literal that a small bug could have made of another one."""
    if re.fullmatch(r"-?\d+", text):
        return str(int(text) + rng.choice([1, -1, 1, -1, 2, 10]))
    if text in ("True", "False"):
        return "False" if text == "True" else "True"
    if text.startswith("'") and len(text) > 2:
        inner = text[1:-1]
        return repr(rng.choice([inner[:-1], inner[1:], inner + " ", inner.title(), inner[::-1], inner + inner[-1]]))
    if text.startswith("[") and len(text) > 2:
        items = text[1:-1].split(", ")
        return "[" + ", ".join(rng.choice([items[1:], items[:-1], items[::-1], [*items, items[-1]]])) + "]"
    return rng.choice(["None", "0", "[]", "''", value(rng)])
