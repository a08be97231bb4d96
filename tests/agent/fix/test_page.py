"""`fix --page`: a real Chromium looks before and after, and a repair that cannot be seen is not called fixed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from m3_tools.screenshot.browser import NAMES
from m3_tools.screenshot.decode import read_picture
from m3_tools.screenshot.page import Page
from m3agent.events import Notice, ToolEnded
from m3agent.exits import Exit
from m3agent.fix.deliver import apply_in_place, take_back
from m3agent.fix.outcome import Ended
from m3agent.fix.worktree import open_worktree
from m3agent.llm.protocol import ModelInfo
from m3agent.llm.scripted import ScriptedModel
from m3agent.messages import ImagePart, Message, ToolCall, assistant

Run = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[3]
READ = [("shop/stock.py", "needs_reorder", -0.5)]
RIGHT = {"needs_reorder": [("replace", "L2|", "    return level <= limit", -1.0)]}
BOX = (
    "<!doctype html><body style='margin: 0'>"
    "<div style='margin: 10px; width: 60px; height: 40px; background: {colour}'></div>"
)
MAKE_PAGE = f"""\
from pathlib import Path
from shop.stock import needs_reorder
Path("public").mkdir(exist_ok=True)
colour = "green" if needs_reorder(5, 5) else "red"
Path("public/index.html").write_text({BOX!r}.format(colour=colour))
"""
BUILD = "python3 make_page.py"
needs_browser = pytest.mark.skipif(
    not any(shutil.which(name) for name in NAMES), reason="Chromium is not installed (apt install chromium)"
)


def page(address: str = "public/index.html", **chosen: Any) -> Page:
    return Page(address=address, width=200, height=100, **chosen)


@pytest.fixture
def site(shop: Path, commit: Any) -> Path:
    """The shop with a page that shows its bug; what is built lies in the repository."""
    (shop / "make_page.py").write_text(MAKE_PAGE)
    (shop / "public").mkdir()
    (shop / "public" / "index.html").write_text(BOX.format(colour="blue"))
    commit(shop)
    return shop


@needs_browser
def test_the_changed_region_is_reported_and_the_pictures_are_kept(site: Path, fix: Run, proposing: Any) -> None:
    result = asyncio.run(fix(site, proposing(READ, RIGHT), page=page(), build=BUILD))
    assert result.code == Exit.OK, result.summary
    seen = result.report["page"]
    assert seen["regions"] == [[10, 10, 60, 40]]
    assert seen["text"] == "1 region changed, 12.0 % of the picture: 60x40 at 10,10"
    assert seen["text"] in result.summary
    pixels = []
    for name in ("before", "after"):
        with Image.open(seen["pictures"][name]) as image:
            assert image.size == (200, 100)
            pixels.append(image.getpixel((20, 20)))
    assert pixels == [(255, 0, 0), (0, 128, 0)]
    assert Path(seen["pictures"]["difference"]).is_file()
    shown = [event.pictures for event in result.events.events if isinstance(event, Notice) and event.pictures]
    assert [Path(block.path).name for block in shown[-1]] == ["page-after-1.png", "page-difference-1.png"]
    assert result.report["files"] == ["shop/stock.py"]  # and not what was built
    assert "index.html" not in Path(result.report["delivery"]["patch"]).read_text()


EDIT = {"path": "shop/stock.py", "old": "level < limit", "new": "level <= limit"}
LOOK = {"path": "public/index.html", "width": 200, "height": 100}


def called(name: str, **arguments: Any) -> Message:
    return assistant(calls=(ToolCall(id=name, name=name, arguments=arguments),))


@needs_browser
@pytest.mark.slow
def test_a_model_is_told_what_each_picture_is_and_sees_the_page_of_its_change(
    site: Path, fix: Run, tmp_path: Path
) -> None:
    """Two pictures came without a word, and a look at the page showed what had been built before the change."""
    turns = [called("read", path="shop/stock.py"), called("edit", **EDIT), called("screenshot", **LOOK)]
    sees = ModelInfo(name="scripted", context_tokens=1_000_000, reads_images=True)
    model = ScriptedModel([*turns, assistant("Done."), assistant("ACCEPT.")], info=sees)
    Image.new("RGB", (40, 30), "red").save(tmp_path / "shot.png")
    shot = read_picture(tmp_path / "shot.png")
    result = asyncio.run(fix(site, model, page=page(), build=BUILD, pictures=(shot,)))
    assert result.code == Exit.OK, result.summary
    issue, review = model.asked[0].messages[1], model.asked[-1].messages[1]
    assert "The pictures, in order: shot.png, public/index.html before any change." in issue.text
    assert f"must be seen on the page {page()}. `screenshot` of it runs `{BUILD}` first." in issue.text
    assert "The pictures, in order: shot.png." in review.text  # the issue may say no more than that they show it
    assert [images(message) for message in (issue, review)] == [2, 1]
    (looked,) = (event for event in result.events.events if isinstance(event, ToolEnded) and event.name == "screenshot")
    assert "Since the last look: 1 region changed, 12.0 % of the picture" in looked.text
    assert result.report["files"] == ["shop/stock.py"]  # and not what was built


def images(message: Message) -> int:
    return sum(isinstance(part, ImagePart) for part in message.parts)


@needs_browser
@pytest.mark.parametrize(
    ("build", "words"),
    [
        ("true", "looks as it did before"),
        ("grep -q 'level < limit' shop/stock.py", "could not be captured again"),
    ],
)
def test_what_cannot_be_seen_is_not_fixed(site: Path, fix: Run, proposing: Any, build: str, words: str) -> None:
    before = (site / "shop/stock.py").read_bytes()
    result = asyncio.run(fix(site, proposing(READ, RIGHT), page=page(), build=build, in_place=True))
    assert (result.code, result.outcome) == (Exit.UNVERIFIED, "unverified")
    assert words in result.summary
    assert (site / "shop/stock.py").read_bytes() == before
    assert Path(result.report["delivery"]["patch"]).is_file()


@needs_browser
@pytest.mark.parametrize(
    ("route", "build", "words"),
    [(page("none.html"), "", "no file of the repository"), (page(selector="#none"), "", "fits no element"),
     (page(), "exit 3", "exit 3 failed")],
)  # fmt: skip
def test_without_a_picture_before_nothing_is_begun(site: Path, fix: Run, route: Page, build: str, words: str) -> None:
    result = asyncio.run(fix(site, None, page=route, build=build))
    assert result.code == Exit.BROKEN_ENVIRONMENT
    assert "could not be captured before the change" in result.summary
    assert words in result.summary


def test_files_that_were_applied_are_put_back_when_the_second_look_fails(shop: Path) -> None:
    before = (shop / "shop/stock.py").read_bytes()
    with open_worktree(shop) as tree:
        (tree.root / "shop/stock.py").write_text("changed = True\n")
        (tree.root / "shop/new.py").write_text("new = True\n")
        applied = apply_in_place(tree)
        assert (shop / "shop/new.py").is_file()
        with pytest.raises(Ended), take_back(tree, applied):
            raise Ended("unverified", "not captured")
    assert (shop / "shop/stock.py").read_bytes() == before
    assert not (shop / "shop/new.py").exists()


@pytest.fixture
def serve(site: Path) -> Iterator[Callable[[str], str]]:
    """Serves the shop's page from the person's own files; after the repair with the given status. Returns its URL."""
    servers = []

    def start(status: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                repaired = "<=" in (site / "shop/stock.py").read_text()
                self.send_response(int(status) if repaired else 200)
                self.end_headers()
                self.wfile.write(BOX.format(colour="green" if repaired else "red").encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("status", "code"), [("200", Exit.OK), ("500", Exit.UNVERIFIED)])
def test_a_page_of_a_server_is_looked_at_once_the_repair_lies_there(
    site: Path, fix: Run, proposing: Any, serve: Callable[[str], str], status: str, code: Exit
) -> None:
    before = (site / "shop/stock.py").read_bytes()
    result = asyncio.run(fix(site, proposing(READ, RIGHT), page=page(serve(status)), in_place=True))
    assert result.code == code, result.summary
    assert ((site / "shop/stock.py").read_bytes() == before) == (code != Exit.OK)
    if code == Exit.OK:
        assert result.report["page"]["regions"] == [[10, 10, 60, 40]]
    else:
        assert "answered with status 500" in result.summary
        assert "applied" not in result.report["delivery"]


@needs_browser
@pytest.mark.slow
def test_the_example_is_repaired_by_nano_and_seen_to_be(example: Callable[[str], Path], tmp_path: Path) -> None:
    site = example("disk_usage")
    look = ["--page", "public/index.html", "--build", "python3 -m disk_usage", "--viewport", "600x260"]
    done = m3_fix(site, tmp_path / "home", *look, "--model", "nano", timeout_s=280)
    assert done.returncode == Exit.OK, done.stderr
    assert "+        return min(100, round(100 * self.used / self.size))" in done.stdout
    assert "regions changed" in done.stdout


def m3_fix(
    site: Path, home: Path, *options: str, path: str = os.environ["PATH"], timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))
    environment = {"PATH": path, "PYTHONPATH": paths, "M3_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "m3agent", "fix", "--repo", str(site), "--issue", "1", *options]
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_without_chromium_it_says_what_to_install(site: Path, tmp_path: Path) -> None:
    done = m3_fix(site, tmp_path / "home", "--page", "public/index.html", path=str(tmp_path))
    assert done.returncode == Exit.BROKEN_ENVIRONMENT
    assert "install Chromium (apt install chromium" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--page", "none.html"], "there is no such file"),
        (["--page", "/etc/hostname"], "lies outside the repository"),
        (["--page", "http://localhost:1/"], "add --in-place"),
        (["--page", "http://localhost:1/", "--in-place", "--pr"], "without --commit or --pr"),
        (["--page", "http://example.com/", "--in-place"], "add --allow-network"),
        (["--page", "public/index.html", "--viewport", "9x9"], "must be 16 to 2016"),
        (["--page", "public/index.html", "--viewport", "wide"], "write for instance 1280x800"),
    ],
)
def test_a_page_that_cannot_be_meant_is_one_line(site: Path, tmp_path: Path, options: list[str], words: str) -> None:
    (tmp_path / "chromium").symlink_to("/bin/true")
    done = m3_fix(site, tmp_path / "home", *options, path=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == Exit.USAGE
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
