"""Whatever the bytes are: a picture that is right, or one line; never much memory, time, or a traceback."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from m3_tools.base import ToolError
from m3_tools.screenshot.decode import decode, read_picture
from m3_tools.screenshot.picture import PictureError
from tests.tools.screenshot.hostile import Case, cases, encoded, noise, plain

ROOT = Path(__file__).parents[3]
CASES = {case.name: case for case in cases()}


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """What became of every case, by its name."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools")])}
    command = [sys.executable, "-m", "tests.tools.screenshot.decode_all"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line for line in lines}


def test_every_kind_of_hostile_image_is_there() -> None:
    kinds = {
        "200-megapixels.png", "bomb.png", "text-bomb.png", "profile-bomb.png", "more-than-it-says.png",
        "zero-bytes.png", "cut-off.png", "cut-off.jpg", "named-otherwise.jpg",
        "animated.gif", "animated.png", "animated.webp",
        "16-bit-grey.png", "16-bit-colour.png", "cmyk.jpg", "transparent-palette.png", "transparent-palette.gif",
        "script.svg", "polyglot.png", *(f"orientation-{number}.jpg" for number in range(1, 9)),
    }  # fmt: skip
    assert kinds <= CASES.keys()
    assert len(CASES) >= 30


def test_the_memory_of_the_decoders_is_really_measured(results: dict[str, dict[str, Any]]) -> None:
    needed = {name: result["child_bytes"] for name, result in results.items()}
    assert list(needed) == list(CASES)
    assert min(list(needed.values())[1:]) > 2**23  # an interpreter; nothing is started for the first case
    assert needed["bomb.png"] > max(6300 * 6300, needed["script.svg"])  # its pixels


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_hostile_image_costs_little_and_is_a_picture_or_one_line(
    results: dict[str, dict[str, Any]], case: Case
) -> None:
    result = results[case.name]
    assert result["duration_s"] < 5
    assert result["child_bytes"] + max(0, result["grown_bytes"]) < 2**30
    if case.error:
        assert case.error in result["error"]
        assert result["error"].startswith(case.name)
        assert "\n" not in result["error"]
        assert "Traceback" not in result["error"]
        return
    assert "error" not in result, result["error"]
    assert case.note in "; ".join(result["notes"])
    data = base64.b64decode(result["data"])
    assert b"SECRET PLACE" not in data
    with Image.open(io.BytesIO(data)) as image:
        assert image.format in ("PNG", "JPEG")
        assert image.mode == "RGB"
        assert image.size == case.size
        assert not image.getexif()
        for place, colour in case.pixels.items():
            found = image.getpixel(place)
            assert isinstance(found, tuple)
            assert all(abs(one - other) < 12 for one, other in zip(found, colour, strict=True)), (place, found)


def test_what_is_transparent_shows_the_background_of_the_theme() -> None:
    image = encoded(Image.new("RGBA", (8, 8), (200, 0, 0, 0)), "PNG")
    with Image.open(io.BytesIO(decode(image, name="a.png", theme="dark").data)) as dark:
        assert dark.getpixel((4, 4)) == (18, 18, 18)


def test_an_ordinary_screenshot_keeps_every_pixel() -> None:
    image = noise(300, 200)
    picture = decode(encoded(image, "PNG"), name="a.png")
    assert (picture.width, picture.height, picture.notes) == (300, 200, ())
    with Image.open(io.BytesIO(picture.data)) as again:
        assert again.tobytes() == image.tobytes()


def test_a_huge_file_is_not_decoded() -> None:
    with pytest.raises(PictureError, match="larger than 64 MiB"):
        decode(b"\0" * (64 * 2**20 + 1), name="a.png")


def test_a_file_is_read_and_a_pipe_is_not(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(encoded(plain(), "PNG"))
    assert read_picture(file).name == "a.png"
    os.mkfifo(tmp_path / "pipe.png")
    for name, words in (("pipe.png", "named pipe"), ("none.png", "does not exist"), ("", "a folder")):
        with pytest.raises(ToolError, match=words):
            read_picture(tmp_path / name)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    place=st.integers(0, 5000),
    garbage=st.binary(min_size=1, max_size=40),
    kind=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]),
)
def test_damage_anywhere_gives_a_picture_or_one_line(place: int, garbage: bytes, kind: str) -> None:
    data = bytearray(encoded(noise(40, 30), kind))
    place %= len(data)
    data[place : place + len(garbage)] = garbage
    problem, picture = "", None
    try:
        picture = decode(bytes(data), name="damaged")
    except PictureError as error:
        problem = str(error)
    assert picture is not None or problem.startswith("damaged")
    assert "\n" not in problem
