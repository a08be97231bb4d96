"""Plain requests: run the tests, show a file, find a name. One user's line, one right call."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from training.transcript import Encoder, Transcript

_TESTS = [
    "run the tests", "Run the test suite", "please run all tests", "do the tests pass?", "test it", "run pytest",
    "are the tests green?", "check the tests", "which tests fail?", "can you run the tests", "execute the tests please",
    "what is failing?", "try the tests again", "rerun the tests", "make sure the tests pass",
]  # fmt: skip
_SHOW = [
    "show {p}", "show me {p}", "open {p}", "read {p}", "print {p}", "let me see {p}", "what is in {p}?", "cat {p}",
    "display the file {p}", "can you show {p}", "look at {p}", "give me the content of {p}", "view {p}",
]  # fmt: skip
_SYMBOL = [
    "show {f} in {p}", "read {f} from {p}", "open the function {f} of {p}", "let me see {f} ({p})",
    "show me {f} in {p}", "what does {f} in {p} look like?", "print {f} of {p}",
]  # fmt: skip
_DEFINED = [
    "where is {f} defined?", "find {f}", "where is {f}?", "find the definition of {f}", "which file defines {f}",
    "search for {f}", "grep {f}", "look for {f}", "where do we define {f}", "locate {f}", "in which file is {f}",
]  # fmt: skip
_USED = [
    "where is {f} used?",
    "who calls {f}?",
    "find the uses of {f}",
    "which code calls {f}",
    "find all calls of {f}",
]


def plain_request(
    encoder: Encoder,
    rng: random.Random,
    system: str,
    tools: Sequence[tuple[str, Sequence[str]]],
    path: str,
    functions: Sequence[str],
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """A request in one of many wordings, with names of a true module, and the call that answers it."""
    transcript = Transcript(encoder)
    transcript.developer(system, tools)
    name = rng.choice(list(functions)) if functions else "main"
    short = name.rsplit(".", 1)[-1]
    kind = rng.randrange(5)
    if kind == 0:
        text, tool, arguments = rng.choice(_TESTS), "test", {}
    elif kind == 1:
        text, tool, arguments = rng.choice(_SHOW).format(p=path), "read", {"path": path}
    elif kind == 2:
        text, tool, arguments = rng.choice(_SYMBOL).format(p=path, f=name), "read", {"path": path, "symbol": name}
    elif kind == 3:
        text, tool = rng.choice(_DEFINED).format(f=short), "grep"
        arguments = {"pattern": f"(def|class) {short}\\b"}
    else:
        text, tool = rng.choice(_USED).format(f=short), "grep"
        arguments = {"pattern": f"\\b{short}\\("}
    if rng.random() < 0.3:
        text = text[:1].upper() + text[1:]
    transcript.user(text)
    transcript.call(tool, arguments)
    return transcript.arrays()
