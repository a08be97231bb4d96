"""Issues about executed bugs in a user's words: the call, what came, what should have come, or hardly anything."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_TITLES = [
    "{f} gives a wrong result", "`{f}` does not work as documented", "Wrong result of {f}", "Bug in `{f}`",
    "{f}: the example in the documentation is off", "{f} broken?", "problem with {f}", "{words} does not work",
    "{words} is wrong", "Unexpected result of {words}", "Regression: {words}", "{f} misbehaves", "Help with {f}",
    "The example of `{f}` fails", "{module}: {words}", "Something is wrong in {module}",
    "Wrong results since the last change of {module}", "Tests of {module} fail",
]  # fmt: skip
_CRASHES = [
    "{e} in {f}", "`{f}` raises {e}", "{f} crashes", "{e} when I use {f}", "I get {e}", "{e} out of the blue",
    "{module} ends with {e}", "`{f}` stopped working: {e}",
]  # fmt: skip
_EXPECTED = [
    "`{call}` should give `{want}`, as its documentation says. It does not.",
    "I expected `{want}` from `{call}`.", "The docs say that `{call}` is `{want}`. Here it is not.",
    "`{call}` used to return `{want}`.", "Calling `{call}` no longer gives `{want}`.",
    "```\n>>> {call}\n```\nThis should print `{want}`.", "Expected `{want}` for `{call}`, got something else.",
    "Please try `{call}`: the answer must be `{want}`.", "How can `{call}` be anything but `{want}`?",
    "Steps:\n1. `{call}`\n2. compare with `{want}`", "{call} -> should be {want}",
]  # fmt: skip
_GOT = [
    "It says:\n```\n{error}\n```", "What I see: `{error}`", "I get `{error}`.", "The last line is {error}",
    "The traceback ends with `{error}`.", "```\n{error}\n```", "Output: {error}",
]  # fmt: skip
_VAGUE = [
    "The examples in its documentation come out differently here.", "Something broke. Please see the failing tests.",
    "It worked before the last update.", "I looked at it for an hour and do not see why.", "The tests are red.",
    "Every input that I tried is wrong.", "Not all inputs are wrong, but many are.", "See the tests.",
    "It was fine in the last release.", "I only use the documented way of calling it.", "Can somebody have a look?",
    "Happens always.", "Both on Linux and on a Mac.", "I have no idea where it comes from.",
]  # fmt: skip
_SHORT = ["The tests fail.", "Fix the failing tests", "please fix the failing test", "tests are red", "A test fails"]
MAX_VALUE_CHARS = 160


def executed_issue(
    rng: random.Random, name: str, path: str, examples: Sequence[tuple[str, str]], error: str, message: str
) -> str:
    """What a user may have written about a failure. `error` is the exception's type, `message` a line of the report
    that tells it, "" where none does.
    """
    short = name.rsplit(".", 1)[-1]
    words = " ".join(re.findall(r"[A-Za-z]+|\d+", short)).lower() or short
    usable = [(c, w) for c, w in examples if len(c) < MAX_VALUE_CHARS and len(w) < MAX_VALUE_CHARS and "\n" not in w]
    call, want = rng.choice(usable) if usable else ("", "")
    fields = {
        "f": rng.choice([name, short, f"{short}()"]), "words": words, "call": call, "want": want, "error": message,
        "module": rng.choice([path, path.rsplit("/", 1)[-1]]), "e": error,
    }  # fmt: skip
    if rng.random() < 0.08:
        return rng.choice(_SHORT)
    crashed = bool(error) and error not in ("AssertionError", "Failed") and rng.random() < 0.5
    template = rng.choice(_CRASHES if crashed else _TITLES)
    template = template[:1].upper() + template[1:] if rng.random() < 0.6 else template
    title = template.format(**fields)
    parts = []
    if usable and rng.random() < 0.5:
        parts.append(rng.choice(_EXPECTED))
    if message and len(message) < MAX_VALUE_CHARS and rng.random() < 0.35:
        parts.append(rng.choice(_GOT))
    if not parts or rng.random() < 0.3:
        parts.append(rng.choice(_VAGUE))
    if rng.random() < 0.12:
        return title
    body = rng.choice(["\n", " ", "\n\n"]).join(part.format(**fields) for part in parts)
    return f"{title}\n\n{body}"
