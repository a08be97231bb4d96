"""The clipboard of every system: with programs on PATH that answer as the real ones do, and with the real xclip."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from PIL import Image

from m3_tools.base import ToolError
from m3_tools.screenshot.clipboard import TIMEOUT_S, read_clipboard
from m3_tools.screenshot.picture import Picture
from tests.tools.screenshot.hostile import encoded, plain

LINUX, WSL, WAYLAND = "6.1.0-18-amd64", "5.15.153.1-microsoft-standard-WSL2", {"WAYLAND_DISPLAY": "wayland-1"}
PNG = encoded(plain(), "PNG")
Programs = Callable[..., dict[str, str]]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    file = tmp_path / "my shot.png"
    file.write_bytes(PNG)
    return file


@pytest.fixture
def programs(tmp_path: Path, picture: Path) -> Programs:
    """Puts shell scripts on PATH, and nothing else; returns the environment. `$PNG` is a picture file."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(variables: dict[str, str], **scripts: str) -> dict[str, str]:
        for name, text in scripts.items():
            file = folder / name.replace("_", "-").replace("-exe", ".exe")
            file.write_text(f"#!/bin/sh\nPNG={shlex.quote(str(picture))}\nPATH=/usr/bin:/bin\n{text}\n")
            file.chmod(0o755)
        return {"PATH": str(folder), **variables}

    return put


def read(environment: dict[str, str], *, system: str = "linux", release: str = LINUX) -> Picture:
    return read_clipboard(environment, system=system, release=release)


def said(environment: dict[str, str], *, system: str = "linux", release: str = LINUX) -> str:
    """The one line of a failure, which never takes long."""
    start = time.monotonic()
    with pytest.raises(ToolError) as caught:
        read(environment, system=system, release=release)
    assert time.monotonic() - start < 3
    text = str(caught.value)
    assert "\n" not in text
    return text


def of_types(kinds: str, **bodies: str) -> str:
    """A wl-paste that offers these types; `bodies` are the commands that write them."""
    listed = f'[ "$1" = --list-types ] && {{ printf "%s\\n" {kinds}; exit 0; }}\n[ "$1" = --no-newline ] || exit 9\n'
    cases = "".join(f'[ "$3" = {kind.replace("_", "/", 1).replace("_", "-")} ] && {{ {body}; exit 0; }}\n'
                    for kind, body in bodies.items())  # fmt: skip
    return f"{listed}{cases}exit 1"


def test_wayland_gives_the_bitmap_in_the_best_form(programs: Programs) -> None:
    environment = programs(WAYLAND, wl_paste=of_types("text/html image/bmp image/png", image_png='cat "$PNG"'))
    got = read(environment)
    assert (got.name, got.width, got.height) == ("clipboard", 40, 20)


def test_a_file_goes_before_the_icon_that_comes_with_it(programs: Programs, picture: Path) -> None:
    uri = f"echo {shlex.quote(picture.as_uri())}"
    environment = programs(WAYLAND, wl_paste=of_types("image/png text/uri-list", text_uri_list=uri, image_png="echo"))
    assert read(environment).name == "my shot.png"


@pytest.mark.parametrize("quote", [str, shlex.quote])
def test_a_path_as_text_is_the_file(programs: Programs, picture: Path, quote: Callable[[str], str]) -> None:
    text = f"echo {shlex.quote(quote(str(picture)))}"
    assert read(programs(WAYLAND, wl_paste=of_types("text/plain", text_plain=text))).name == "my shot.png"


@pytest.mark.parametrize("text", ["hello", "/etc", "/no/such/file.png", "one.png\\ntwo.png"])
def test_another_text_is_no_picture(programs: Programs, text: str) -> None:
    environment = programs(WAYLAND, wl_paste=of_types("text/plain", text_plain=f"printf '{text}'"))
    assert said(environment) == "there is no picture on the clipboard; copy one, or give the path of a file"


def test_an_empty_clipboard_is_told_in_the_words_of_its_program(programs: Programs) -> None:
    assert "(Nothing is copied)" in said(programs(WAYLAND, wl_paste="echo Nothing is copied >&2; exit 1"))


def test_without_the_program_of_wayland_that_of_x11_reads_or_it_says_what_to_install(programs: Programs) -> None:
    assert "apt install wl-clipboard" in said(programs(WAYLAND))
    assert "apt install xclip" in said(programs({"DISPLAY": ":1"}))
    xclip = '[ "$5" = TARGETS ] && { echo TARGETS image/png; exit 0; }\n[ "$5" = image/png ] && cat "$PNG"'
    assert read(programs({**WAYLAND, "DISPLAY": ":1"}, xclip=xclip)).width == 40


def test_without_a_display_there_is_no_clipboard(programs: Programs) -> None:
    assert said(programs({})).startswith("there is no clipboard here")


@pytest.mark.parametrize(("system", "release"), [("linux", LINUX), ("linux", WSL), ("darwin", "23.5.0")])
def test_over_ssh_it_says_so_at_once(programs: Programs, system: str, release: str) -> None:
    environment = programs({"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22"}, osascript="sleep 9")
    assert "cannot be read over SSH; copy the file to this machine" in said(environment, system=system, release=release)


def test_a_display_that_ssh_forwards_brings_its_clipboard(programs: Programs) -> None:
    xclip = '[ "$5" = TARGETS ] && { echo image/png; exit 0; }\ncat "$PNG"'
    assert read(programs({"SSH_TTY": "/dev/pts/1", "DISPLAY": "localhost:10.0"}, xclip=xclip)).height == 20


MAC_INFO = '[ "$2" = "clipboard info" ] && { echo "%s"; exit 0; }\n'
MAC_BITMAP = MAC_INFO % "«class PNGf», 512, «class 8BPS», 900, TIFF picture, 3000"
MAC_HEX = 'printf "«data PNGf%s»\\n" "$(od -An -v -tx1 "$PNG" | tr -d " \\n" | tr a-f A-F)"'


def test_macos_gives_a_bitmap_a_file_or_a_path(programs: Programs, picture: Path) -> None:
    mac = {"system": "darwin", "release": "23.5.0"}
    got = read(programs({}, osascript=MAC_BITMAP + MAC_HEX), **mac)
    assert (got.name, got.width) == ("clipboard", 40)
    path = f"echo {shlex.quote(str(picture))}"
    assert (
        read(programs({}, osascript=MAC_INFO % "«class furl», 40, «class PNGf», 9" + path), **mac).name == picture.name
    )
    assert read(programs({}, osascript=MAC_INFO % "string, 30, «class utf8», 30" + path), **mac).name == picture.name
    assert "no picture" in said(programs({}, osascript=MAC_INFO % ""), **mac)


def test_macos_takes_pngpaste_where_it_is_installed(programs: Programs) -> None:
    environment = programs({}, osascript=MAC_BITMAP + "exit 1", pngpaste='[ "$1" = - ] && cat "$PNG"')
    assert read(environment, system="darwin", release="23.5.0").width == 40


def test_windows_gives_a_bitmap_a_file_or_a_path_to_wsl(programs: Programs, picture: Path) -> None:
    # It fails unless it is given the script in the form that PowerShell wants.
    head = 'for last; do :; done\necho "$last" | base64 -d | tr -d "\\000" | grep -q GetImage || exit 3\n'
    environment = programs(WAYLAND, powershell_exe=head + 'printf \'image %s\\r\\n\' "$(base64 -w0 "$PNG")"')
    assert read(environment, release=WSL).name == "clipboard"
    wslpath = f'[ "$2" = "C:\\\\Users\\\\me\\\\my shot.png" ] && echo {shlex.quote(str(picture))}'
    for kind in ("file", "text"):
        answer = f"printf '%s' '{kind} C:\\Users\\me\\my shot.png'"
        environment = programs(WAYLAND, powershell_exe=head + answer, wslpath=wslpath)
        assert read(environment, release=WSL).name == "my shot.png"
    assert "no picture" in said(programs({}, powershell_exe="echo 'text hello'"), release=WSL)
    assert "powershell.exe could not" in said(programs({}, powershell_exe="exit 1"), release=WSL)


def test_wsl_without_windows_programs_says_so(programs: Programs) -> None:
    assert "powershell.exe, which is not on PATH" in said(programs(WAYLAND), release=WSL)


def test_a_program_that_hangs_is_killed_with_all_that_it_started(programs: Programs, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    environment = programs(WAYLAND, wl_paste=f"sleep 60 &\necho $! > {pid}\nwait")
    assert f"wl-paste did not answer within {TIMEOUT_S} s" in said(environment)
    assert not psutil.pid_exists(int(pid.read_text())) or psutil.Process(int(pid.read_text())).status() == "zombie"


def test_output_without_end_is_refused(programs: Programs) -> None:
    assert "wl-paste wrote more than" in said(programs(WAYLAND, wl_paste="cat /dev/zero"))


def test_bytes_that_are_no_picture_are_one_line(programs: Programs) -> None:
    environment = programs(WAYLAND, wl_paste=of_types("image/png", image_png="echo '<html>'"))
    assert said(environment).startswith("clipboard: it is a web page")


@pytest.fixture
def x11(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A real X server and its clipboard."""
    if not (shutil.which("Xvfb") and shutil.which("xclip")):
        pytest.skip("Xvfb and xclip are not installed (apt install xvfb xclip)")
    reader, writer = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writer), "-screen", "0", "64x64x24", "-nolisten", "tcp"],
        pass_fds=[writer],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    with os.fdopen(reader) as file:
        display = file.readline().strip()
    yield {"DISPLAY": f":{display}", "PATH": os.environ["PATH"]}
    server.terminate()
    server.wait()


def copy(environment: dict[str, str], kind: str, data: bytes) -> None:
    """Own the clipboard from now on, until somebody else copies or the server ends."""
    command = ["xclip", "-selection", "clipboard", "-t", kind]
    subprocess.run([*command, "-i"], input=data, env=environment, check=True, timeout=20, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20  # it goes to the background before it owns anything
    while subprocess.run([*command, "-o"], env=environment, capture_output=True, check=False).stdout != data:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_real_xclip_gives_what_was_copied(x11: dict[str, str], picture: Path) -> None:
    assert "no picture on the clipboard" in said(x11)
    large = encoded(Image.effect_noise((900, 700), 60), "PNG")
    copy(x11, "image/png", large)
    got = read(x11)
    assert (got.width, got.height) == (900, 700)
    copy(x11, "UTF8_STRING", str(picture).encode())
    assert read(x11).name == "my shot.png"
    copy(x11, "text/uri-list", f"{picture.as_uri()}\r\n".encode())
    assert read(x11).name == "my shot.png"
    copy(x11, "UTF8_STRING", "grüße".encode())
    assert "no picture on the clipboard" in said(x11)


def test_a_display_that_is_gone_is_told(tmp_path: Path) -> None:
    if not shutil.which("xclip"):
        pytest.skip("xclip is not installed (apt install xclip)")
    assert "display" in said({"DISPLAY": ":987", "PATH": os.environ["PATH"]})


def test_the_bitmap_is_read_as_it_is(programs: Programs) -> None:
    text = base64.b64encode(encoded(plain(), "BMP")).decode()
    body = f"echo {text} | base64 -d"
    environment = programs(WAYLAND, wl_paste=of_types("image/bmp", image_bmp=body))
    assert read(environment).media_type == "image/png"
