"""Pictures from a person to the model: over a real socket, and what is said where nobody looks at them."""

from __future__ import annotations

import base64
import io
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from m3_tools.screenshot.decode import decode
from m3agent.errors import M3Error
from m3agent.images import LEFT_OUT, image_part, num_tokens, read_images, without_images
from m3agent.messages import assistant, user
from m3agent.settings import ImageRule, load_settings
from tests.agent.test_cli import m3, script
from tests.contracts.played_server import PlayedServer


@pytest.fixture
def bug(tmp_path: Path) -> Path:
    file = tmp_path / "bug.png"
    Image.new("RGB", (1920, 1080), (250, 250, 250)).save(file)
    return file


@pytest.fixture
def server() -> Iterator[PlayedServer]:
    played = PlayedServer(context=1_000_000)
    yield played
    played.close()


@pytest.mark.parametrize(("rule", "tokens"), [("long_side", 2691), ("area", 576)])
def test_the_cost_of_a_picture_goes_by_the_rule(bug: Path, rule: ImageRule, tokens: int) -> None:
    (picture,) = read_images([bug])
    assert num_tokens(picture, rule) == tokens


def test_the_rule_is_a_setting(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('image_rule = "area"\n')
    assert load_settings(environ={"M3_HOME": str(tmp_path)}).image_rule == "area"
    config.write_text('image_rule = "huge"\n')
    with pytest.raises(M3Error, match="long_side or area"):
        load_settings(environ={"M3_HOME": str(tmp_path)})


def test_a_model_that_reads_text_only_gets_a_word_in_place_of_a_picture() -> None:
    data = io.BytesIO()
    Image.new("RGB", (30, 30)).save(data, "PNG")
    message = user("See.", image_part(decode(data.getvalue(), name="a.png")))
    assert without_images(message).text == f"{LEFT_OUT}\nSee."
    assert without_images(user("See.")) == user("See.")


def test_run_sends_the_picture(server: PlayedServer, bug: Path, repo: Path, home: Path) -> None:
    server.turns = [assistant("The button is cut off.")]
    done = m3(home, "run", "What is wrong?", "--image", str(bug), "--model", server.url, cwd=repo)
    assert done.returncode == 0, done.stderr
    assert "bug.png: 1920 × 1080, about 2,691 tokens (read at 1932 × 1092, long side up to 2016)" in done.stderr
    (image, text) = server.requests[0]["messages"][-1]["content"]
    assert text == {"type": "text", "text": "What is wrong?"}
    sent = base64.b64decode(image["image_url"]["url"].partition(",")[2])
    assert Image.open(io.BytesIO(sent)).size == (1920, 1080)
    assert "screenshot" in [tool["function"]["name"] for tool in server.requests[0]["tools"]]


def test_fix_sends_the_picture(server: PlayedServer, bug: Path, repo: Path, home: Path) -> None:
    (repo / "issues").mkdir()
    (repo / "issues" / "1.md").write_text("# Sums are wrong\n\nSee the screenshot; add(1, 2) is not 3.\n")
    subprocess.run(["git", "-c", "user.name=T", "-c", "user.email=t@localhost", "add", "."], cwd=repo, check=True)
    server.turns = [assistant("I see nothing.")]
    done = m3(home, "fix", "--issue", "1", "--image", str(bug), "--model", server.url, cwd=repo)
    assert done.returncode == 1, done.stderr
    assert server.requests[0]["messages"][-1]["content"][0]["type"] == "image_url"


def test_a_model_without_eyes_is_told_of_in_one_line(bug: Path, repo: Path, home: Path, tmp_path: Path) -> None:
    model = script(tmp_path, assistant("I cannot see it."))
    done = m3(home, "run", "What is wrong?", "--image", str(bug), "--model", model, cwd=repo)
    assert done.returncode == 0
    assert "bug.png: 1920 × 1080, not looked at, scripted reads text only" in done.stderr


@pytest.mark.parametrize(("name", "words"), [("none.png", "does not exist"), ("page.png", "a web page, not an image")])
def test_a_picture_that_cannot_be_read_is_one_line(
    repo: Path,
    home: Path,
    tmp_path: Path,
    name: str,
    words: str,
) -> None:
    (tmp_path / "page.png").write_text("<!doctype html>")
    done = m3(home, "run", "What?", "--image", str(tmp_path / name), "--model", "nano", cwd=repo)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_chat_takes_a_picture_along(server: PlayedServer, bug: Path, repo: Path, home: Path) -> None:
    server.turns = [assistant("Cut off."), assistant("The same.")]
    said = f"What is wrong?\n/image '{bug}'\n/image none.png\nAnd here?\n"
    done = m3(home, "chat", "--image", str(bug), "--model", server.url, cwd=repo, input=said)
    assert done.returncode == 0, done.stderr
    users = [m["content"] for m in server.requests[1]["messages"] if m["role"] == "user"]
    assert [len(content) for content in users] == [2, 2]
    assert "does not exist" in done.stdout + done.stderr
