"""What people type in the chat, and what nano answers where no tool helps. {p} is a file, {f} a name in it."""

from __future__ import annotations

import random

TESTS = [
    "run the tests", "run the test suite", "run all tests", "test it", "run pytest", "check the tests",
    "execute the tests", "try the tests again", "rerun the tests", "make sure the tests pass", "start the tests",
    "run the unit tests", "see whether the tests pass", "tell me which tests fail", "check that everything passes",
    "run the whole suite", "run the tests once more", "show me the failing tests", "test the project", "run tests",
]  # fmt: skip
TESTS_ASKED = [
    "do the tests pass?", "are the tests green?", "which tests fail?", "what is failing?", "is the build green?",
    "how many tests fail", "does everything pass?", "any failing tests?", "are there broken tests", "what fails?",
    "is anything broken?", "tests ok?", "did I break something?", "how do the tests look?", "all green?",
]  # fmt: skip
SHOW = [
    "show {p}", "show me {p}", "open {p}", "read {p}", "print {p}", "cat {p}", "display the file {p}", "look at {p}",
    "give me the content of {p}", "view {p}", "list {p}", "dump {p}", "show the file {p}", "show the source of {p}",
    "read me {p}", "print out {p}", "let me see {p}", "get {p}",
]  # fmt: skip
SHOW_ASKED = ["what is in {p}?", "what does {p} contain?", "what stands in {p}?", "I want to see {p}", "{p}?"]
SYMBOL = [
    "show {f} in {p}", "read {f} from {p}", "open the function {f} of {p}", "let me see {f} ({p})",
    "show me {f} in {p}", "print {f} of {p}", "show the code of {f} in {p}", "show {p}, function {f}",
    "display {f} from {p}", "read the source of {f} in {p}", "look at {f} in {p}",
]  # fmt: skip
SYMBOL_ASKED = ["what does {f} in {p} look like?", "how is {f} in {p} written?", "I need the code of {f} in {p}"]
DEFINED = [
    "find {f}", "find the definition of {f}", "search for {f}", "grep {f}", "look for {f}", "locate {f}",
    "find where {f} is defined", "search the definition of {f}", "tell me where {f} is defined", "go to {f}",
]  # fmt: skip
DEFINED_ASKED = [
    "where is {f} defined?", "where is {f}?", "which file defines {f}", "where do we define {f}",
    "in which file is {f}", "where does {f} live?", "where can I find {f}?", "which module has {f}?",
    "is there a {f}?", "where's {f}", "in what file is {f} defined",
]  # fmt: skip
USED = [
    "find the uses of {f}", "find all calls of {f}", "list the callers of {f}", "show where {f} is used",
    "search for calls of {f}", "find the places that call {f}", "grep for uses of {f}", "find references to {f}",
]  # fmt: skip
USED_ASKED = [
    "where is {f} used?", "who calls {f}?", "which code calls {f}", "who uses {f}?", "where do we call {f}?",
    "is {f} used anywhere?", "what uses {f}?", "is {f} called somewhere?",
]  # fmt: skip
_BEFORE = ["please ", "can you ", "could you ", "could you please ", "now ", "ok, ", "hey, ", "then ", "I want you to "]
_AFTER = [" please", " now", " for me", ".", " again", ", thanks", "!"]

_GREETING = "Hello. I can run the tests, show code, find names and repair small bugs."
_ABLE = "I can run the tests, show code, find names and repair small bugs in Python."
_NAME = "I am nano, the small model that comes with m3. I repair small bugs in Python."
_WELCOME = "You are welcome."
TALK = [
    (["hello", "hi", "hey", "good morning", "hello there", "hi nano", "hey there", "good evening", "hallo"], _GREETING),
    (["what can you do?", "help", "what can I ask you?", "how do I use this?", "what are you able to do?",
      "what are you good for?", "how can you help me?", "what commands are there?", "/?", "?"], _ABLE),
    (["who are you?", "what are you?", "which model are you?", "are you M3?", "what model is this?", "your name?",
      "are you a large model?", "are you ChatGPT?", "introduce yourself", "explain what you are"], _NAME),
    (["thanks", "thank you", "thanks a lot", "great, thanks", "thx", "cheers", "perfect, thank you", "nice work",
      "well done", "good job"], _WELCOME),
    (["ok", "good", "fine", "great", "I see", "alright", "perfect", "cool"], "Good. Tell me what to do next."),
    (["bye", "goodbye", "see you", "that's all", "quit", "exit", "done for today"], "Goodbye."),
]  # fmt: skip

_NO_CHANGES = "I cannot see what changed; `git diff` shows it."
_NO_COMMANDS = "I cannot run commands; I can run the tests, show code, find names and repair small bugs."
_NO_PROSE = "I am too small to explain code. I can show it: ask me for a file or a function."
_NO_FEATURES = "I am too small for that: I repair small bugs where a test fails. A larger model is chosen with --model."
_NO_OTHER = "I cannot answer that. I can run the tests, show code, find names and repair small bugs in Python."
CANNOT = [
    (["what changed?", "what did you change?", "show the diff", "what is different now?", "show me the changes",
      "which files changed", "what changed since yesterday?", "show the last commit", "git diff", "git log",
      "what have you done?", "list the changes in {p}"], _NO_CHANGES),
    (["install numpy", "run ls", "start the server", "run {p}", "pip install the requirements", "delete {p}",
      "commit this", "push it", "make a pull request", "run the linter", "format {p}", "create a branch",
      "git status", "run mypy", "rename {p}", "build the package", "open a browser", "run make"], _NO_COMMANDS),
    (["explain {f}", "what does {f} do?", "how does {p} work?", "explain {p} to me", "summarise {p}",
      "why is {f} here?", "what is this project about?", "describe the architecture", "is {f} any good?",
      "review {p}", "what is {f} for?", "walk me through {p}", "how does the code work?", "give me an overview",
      "explain the repository"], _NO_PROSE),
    (["add a --verbose flag", "write a new function that sorts names", "add tests for {f}",
      "write documentation for {p}", "refactor {p}", "make {f} faster", "add type hints to {p}", "port {p} to Rust",
      "implement a cache for {f}", "split {p} into two files", "write a README", "add logging to {f}",
      "turn {f} into a class", "clean up {p}", "rewrite {f}", "add an option to {f}", "support Windows",
      "create a web page", "write a script that calls {f}", "optimise {f}", "add a docstring to {f}",
      "make a new module", "build me a game"], _NO_FEATURES),
    (["what is the weather?", "tell me a joke", "write a poem", "how old is the universe?",
      "translate this to French", "what is 17 times 23?", "who won the game?", "what time is it?",
      "do you like music?", "tell me about Paris", "what is the meaning of life?", "can you feel?",
      "give me a recipe", "search the web", "what is Python?", "read my e-mail", "who wrote {p}?",
      "what do you think?", "why?", "sing", "how do I learn to code?"], _NO_OTHER),
]  # fmt: skip
SOUND = [
    "All {n} tests pass, so I have nothing to repair. A test that shows the bug would help me.",
    "Nothing fails: all {n} tests pass. Give me a test that fails and I can look for the bug.",
]  # fmt: skip


def worded(rng: random.Random, orders: list[str], questions: list[str], **names: str) -> str:
    """An order, sometimes with polite words around it, or a question about the same."""
    if rng.random() < len(questions) / (len(orders) + len(questions)):
        text = rng.choice(questions).format(**names)
    else:
        text = rng.choice(orders).format(**names)
        if rng.random() < 0.4:
            text = rng.choice(_BEFORE) + text
        if rng.random() < 0.3:
            text += rng.choice(_AFTER)
    if rng.random() < 0.1:
        text = text.rstrip("?.!")
    return varied(rng, text)


def varied(rng: random.Random, text: str) -> str:
    """With or without a capital; a file or a name at the beginning keeps its own."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if rng.random() < 0.3 and first.rstrip(",?.!").isalpha() else text
