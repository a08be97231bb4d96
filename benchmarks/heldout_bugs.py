"""Make the held-out bugs: repositories of packages that training never saw, each with one damaged line and failing
tests.

The packages come from the registry when the benchmark is made; nothing of them is committed. A repository holds the
package, tests made from its docstrings, one issue in a user's words, and the bug. Every bug is checked: the
function's own test passes on the original and fails, without an error of collection, on the damaged module.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from training.bugs import Bug, inject
from training.doctests import FunctionTest, function_tests
from training.sources import HELD_OUT, normalised

PACKAGES = (
    ("boltons", 50), ("more-itertools", 50), ("toolz", 40), ("sortedcontainers", 30), ("inflection", 15),
    ("humanize", 15), ("tabulate", 15), ("pyparsing", 10), ("multipledispatch", 5),
)  # fmt: skip
"""Distributions and the most bugs that each gives."""
TRIES = 12
TEST_TIMEOUT_S = 20
CONFIGURATION = '[tool.pytest.ini_options]\npythonpath = ["."]\ntestpaths = ["tests"]\n'


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOutBug:
    """One case: where its repository lies, what was damaged, and what undoes it."""

    id: str
    package: str
    version: str
    path: str
    function: str
    kind: str
    test: str
    buggy_line: str
    repair: dict[str, str | int]
    original_sha256: str


@dataclasses.dataclass(frozen=True)
class _Module:
    package: str
    version: str
    tree: Path
    path: str
    text: str
    tests: list[FunctionTest]


def make_bugs(cache: Path, *, count: int, seed: int) -> list[HeldOutBug]:
    """`count` bugs under `cache`, made once: a later call with the same count and seed reads them back."""
    assert all(normalised(name) in HELD_OUT for name, _ in PACKAGES), "a benchmark package must be held out of training"
    home = cache / f"bugs-{count}-{seed}"
    listing = home / "bugs.json"
    if listing.exists():
        return [HeldOutBug(**entry) for entry in json.loads(listing.read_text())]
    modules = [m for name, _ in PACKAGES for m in _modules(unpacked(cache, name), name)]
    bugs: list[HeldOutBug] = []
    left = dict(PACKAGES)
    places = [(m, t) for m in modules for t in m.tests]
    random.Random(seed).shuffle(places)
    for module, test in places:
        if len(bugs) == count:
            break
        if left[module.package] == 0:
            continue
        made = _damage(module, test, random.Random(f"{seed}/{module.path}/{test.qualname}"), home, len(bugs) + 1)
        if made is not None:
            bugs.append(made)
            left[module.package] -= 1
    listing.write_text(json.dumps([dataclasses.asdict(b) for b in bugs], indent=1))
    return bugs


def unpacked(cache: Path, name: str) -> tuple[str, Path]:
    """A distribution's version and the folder of its modules, downloaded at the first call."""
    wheels = cache / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    pattern = f"{name.replace('-', '_')}-*.whl"
    if not list(wheels.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), name]
        subprocess.run(command, check=True)
    wheel = sorted(wheels.glob(pattern))[-1]
    folder = cache / "sources" / wheel.stem
    if not folder.exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder.with_suffix(".part"), [n for n in archive.namelist() if ".dist-info/" not in n])
        for unwanted in [*folder.with_suffix(".part").rglob("tests"), *folder.with_suffix(".part").rglob("locale")]:
            shutil.rmtree(unwanted, ignore_errors=True)
        folder.with_suffix(".part").rename(folder)
    return wheel.name.split("-")[1], folder


def _modules(source: tuple[str, Path], package: str) -> Iterator[_Module]:
    """The modules of a package that have examples, with those tests that pass twice on the original."""
    version, tree = source
    for file in sorted(tree.rglob("*.py")):
        path = file.relative_to(tree).as_posix()
        text = file.read_text(encoding="utf-8")
        dotted = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        tests = list({t.test_name: t for t in function_tests(text, dotted)}.values())
        if tests:
            module = _Module(package, version, tree, path, text, tests)
            passing = _passing(module)
            if passing:
                yield dataclasses.replace(module, tests=passing)


def _passing(module: _Module) -> list[FunctionTest]:
    kept = module.tests
    scratch = module.tree.parent / "check" / module.tree.name
    _lay(module, scratch, module.text)
    for _ in range(2):
        outcome = _pytest(scratch, ["-rA", f"tests/{_test_file(module)}"], timeout_s=120)
        passed = {line.split("::")[-1].split()[0] for line in outcome.stdout.splitlines() if line.startswith("PASSED ")}
        kept = [t for t in kept if t.test_name in passed]
    return kept


def _damage(module: _Module, test: FunctionTest, rng: random.Random, home: Path, number: int) -> HeldOutBug | None:
    """A repository with one bug in the tested function; None if no try of a dozen makes its test fail."""
    lines = module.text.split("\n")
    source = "\n".join(lines[test.first : test.last + 1])
    ident = f"{number:03d}-{module.package}-{test.test_name.removeprefix('test_')}"
    folder = home / ident
    for _ in range(TRIES):
        bug = inject(source, rng, two_edits=0.0)
        if bug is None:
            return None
        damaged = "\n".join([*lines[: test.first], bug.source, *lines[test.last + 1 :]])
        _lay(module, folder, damaged)
        outcome = _pytest(folder, ["-x", f"tests/{_test_file(module)}::{test.test_name}"], timeout_s=TEST_TIMEOUT_S)
        if outcome.returncode == 1:
            _finish(folder, issue_text(rng, module.path, test))
            return _record(ident, module, test, bug)
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _record(ident: str, module: _Module, test: FunctionTest, bug: Bug) -> HeldOutBug:
    line = bug.repair.line + test.first
    return HeldOutBug(
        id=ident,
        package=module.package,
        version=module.version,
        path=module.path,
        function=test.qualname,
        kind=bug.kind,
        test=f"tests/{_test_file(module)}::{test.test_name}",
        buggy_line=bug.added[0] if bug.added else "",
        repair={"action": bug.repair.action, "line": line, "text": bug.repair.text},
        original_sha256=hashlib.sha256(module.text.encode()).hexdigest(),
    )


def _test_file(module: _Module) -> str:
    stem = module.path.removesuffix(".py").removesuffix("/__init__").rsplit("/", 1)[-1].strip("_")
    return f"test_{stem}.py"


def _lay(module: _Module, folder: Path, text: str) -> None:
    """Write the package with `text` as the module, and the module's tests."""
    if not folder.exists():
        shutil.copytree(module.tree, folder)
    (folder / module.path).write_text(text, encoding="utf-8")
    (folder / "pyproject.toml").write_text(CONFIGURATION)
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests" / _test_file(module)).write_text(
        "\n\n".join(t.source for t in module.tests) + "\n", encoding="utf-8"
    )


def _pytest(folder: Path, arguments: list[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    try:
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", "")


def issue_text(rng: random.Random, path: str, test: FunctionTest) -> str:
    """A third of the issues give a call and its right result, a third name the function, a third are vague."""
    name = test.qualname.rsplit(".", 1)[-1]
    call, expected = rng.choice(test.examples)
    style = rng.randrange(3)
    if style == 0 and len(call) + len(expected) < 400:
        title = f"`{name}` gives a wrong result"
        body = f"`{call}` should give `{expected}`, as its documentation says. It does not."
    elif style == 1:
        title = f"`{name}` does not work as documented"
        body = "The examples in its documentation come out differently here."
    else:
        title = f"Wrong results since the last change of {path.rsplit('/', 1)[-1]}"
        body = "Something broke. Please see the failing tests."
    return f"# {title}\n\n{body}\n"


def _finish(folder: Path, issue: str) -> None:
    """Issue and first commit, so that the repository is as a person would have it."""
    (folder / "issues").mkdir()
    (folder / "issues" / "1.md").write_text(issue, encoding="utf-8")
    git = [
        "git",
        "-c",
        "user.name=m3 benchmark",
        "-c",
        "user.email=benchmark@example.invalid",
        "-c",
        "commit.gpgsign=false",
    ]
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        ["commit", "-q", "-m", "The package as it is in use"],
    ):
        subprocess.run([*git, *arguments], cwd=folder, check=True, capture_output=True)
