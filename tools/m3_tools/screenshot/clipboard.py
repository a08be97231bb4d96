"""The picture on the clipboard, by the programs that systems have for it: a bitmap, or the path of a picture file.

Nothing waits: all programs together get `TIMEOUT_S`, and whatever they left running is killed.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import os
import platform
import re
import secrets
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from m3_tools.process import TOKEN, child_environment, kill_tree
from m3_tools.screenshot.decode import MAX_BYTES, decode, read_picture
from m3_tools.screenshot.dropped import dropped_path
from m3_tools.screenshot.picture import Picture, PictureError, Theme

TIMEOUT_S = 2.5
MAX_TEXT_BYTES = 64_000
"""A text that is longer is no path."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/bmp", "image/gif")
"""What is asked for, the best first."""
FILES = "text/uri-list"
TEXTS = ("text/plain;charset=utf-8", "UTF8_STRING", "text/plain", "STRING")
MAX_SAID_CHARS = 120
OVER_SSH = "the clipboard of your own machine cannot be read over SSH; copy the file to this machine and give its path"
NO_DISPLAY = "there is no clipboard here (no Wayland and no X11 display); give the path of a file"
POWERSHELL = "/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe"
"""Where it lies when Windows' PATH is not passed on."""
_POWERSHELL_SCRIPT = """
Add-Type -AssemblyName System.Windows.Forms
[Console]::OutputEncoding = [Text.Encoding]::UTF8
$clipboard = [Windows.Forms.Clipboard]
if ($clipboard::ContainsFileDropList()) { 'file ' + $clipboard::GetFileDropList()[0]; exit }
$image = $clipboard::GetImage()
if ($image) {
  $stream = New-Object IO.MemoryStream
  $image.Save($stream, [Drawing.Imaging.ImageFormat]::Png)
  'image ' + [Convert]::ToBase64String($stream.ToArray()); exit
}
'text ' + $clipboard::GetText()
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Content:
    """What the clipboard holds, as far as it matters: an encoded bitmap, or a text that may be a path."""

    bitmap: bytes = b""
    text: str = ""


def read_clipboard(
    environment: Mapping[str, str],
    *,
    theme: Theme = "light",
    system: str = sys.platform,
    release: str = platform.release(),
) -> Picture:
    """The picture on the clipboard, or in the file whose path is there.

    Errors: PictureError, and ToolError for a file that cannot be read; one line, with what to do.
    """
    programs = Programs(environment, time.monotonic() + TIMEOUT_S)
    content = find_source(environment, system, release).read(programs)
    if content.bitmap:
        return decode(content.bitmap, name="clipboard", theme=theme)
    lines = [line for line in content.text.splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) == 1 and len(content.text) <= MAX_TEXT_BYTES:
        path = dropped_path(lines[0])
        if path.is_absolute() and path.is_file():
            return read_picture(path, theme=theme)
    reason = f" ({programs.said})" if programs.said else ""
    raise PictureError(f"there is no picture on the clipboard{reason}; copy one, or give the path of a file")


class Programs:
    """Runs the clipboard's programs, none of them beyond the deadline."""

    def __init__(self, environment: Mapping[str, str], deadline: float):
        self._deadline = deadline
        self.said = ""
        """What the last program that failed gave as its reason."""
        self._environment = {**child_environment(environment), TOKEN: secrets.token_hex(16)}

    def find(self, name: str) -> str | None:
        return shutil.which(name, path=self._environment.get("PATH", os.defpath))

    def output(self, argv: Sequence[str], *, limit: int = MAX_BYTES) -> bytes | None:
        """What the program wrote, or None if it failed; `said` then holds why.

        Errors: PictureError for one that is late or writes more than `limit` bytes.
        """
        name = Path(argv[0]).name
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                    env=self._environment, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise PictureError(f"{name} cannot be started ({error.strerror}); give the path of a file") from error
            assert process.stdout is not None
            code = None
            try:
                data = self._read(process.stdout.fileno(), limit, name)
                code = process.wait(max(0.0, self._deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise _late(name) from None
            finally:
                process.stdout.close()
                if code is None:
                    kill_tree(process.pid, self._environment[TOKEN])
                    process.wait()
            if code == 0:
                return data
            errors.seek(0)
            self.said = " ".join(errors.read(4000).decode("utf-8", "replace").split())[:MAX_SAID_CHARS]
            return None

    def _read(self, pipe: int, limit: int, name: str) -> bytes:
        data = bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(pipe, selectors.EVENT_READ)
            while ready.select(max(0.0, self._deadline - time.monotonic())):
                piece = os.read(pipe, 1 << 20)
                if not piece:
                    return bytes(data)
                data += piece
                if len(data) > limit:
                    raise PictureError(f"{name} wrote more than {limit:,} bytes; give the path of a file")
        raise _late(name)


def _late(name: str) -> PictureError:
    return PictureError(f"{name} did not answer within {TIMEOUT_S} s; try again, or give the path of a file")


class Source(Protocol):
    """One kind of clipboard."""

    def read(self, programs: Programs) -> Content:
        """Errors: PictureError when its program is missing or late."""
        ...


def find_source(environment: Mapping[str, str], system: str, release: str) -> Source:
    """The clipboard of the session. Errors: PictureError where it has none."""
    display = environment.get("DISPLAY")
    is_remote = any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "SSH_CLIENT"))
    if is_remote and not (display and system != "darwin"):  # a forwarded display brings its clipboard along
        raise PictureError(OVER_SSH)
    if system == "darwin":
        return MacOS()
    if "microsoft" in release.lower():
        return Windows()
    if environment.get("WAYLAND_DISPLAY"):
        return Wayland(has_x11=bool(display))
    if display:
        return X11()
    raise PictureError(NO_DISPLAY)


class X11:
    def read(self, programs: Programs) -> Content:
        program = programs.find("xclip")
        if program is None:
            raise PictureError("the clipboard is read by xclip, which is not installed (apt install xclip)")
        paste = (program, "-selection", "clipboard", "-o", "-t")
        return _of_types(programs, (*paste, "TARGETS"), paste)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wayland:
    has_x11: bool
    """Whether X11's clipboard is there too: the two are kept alike."""

    def read(self, programs: Programs) -> Content:
        program = programs.find("wl-paste")
        if program is not None:
            return _of_types(programs, (program, "--list-types"), (program, "--no-newline", "--type"))
        if self.has_x11 and programs.find("xclip"):
            return X11().read(programs)
        raise PictureError("the clipboard is read by wl-paste, which is not installed (apt install wl-clipboard)")


def _of_types(programs: Programs, list_types: Sequence[str], paste: Sequence[str]) -> Content:
    """The best of what is offered: a file, before the picture that some programs add for its icon; a bitmap; a text."""
    listed = programs.output(list_types, limit=MAX_TEXT_BYTES) or b""
    offered = listed.decode("utf-8", "replace").split()
    if FILES in offered:
        text = (programs.output([*paste, FILES]) or b"").decode("utf-8", "replace")
        if urlsplit(text.strip()).scheme == "file":
            return Content(text=text)
    for kind in IMAGE_TYPES:
        if kind in offered and (data := programs.output([*paste, kind])):
            return Content(bitmap=data)
    for kind in TEXTS:
        if kind in offered:
            return Content(text=(programs.output([*paste, kind]) or b"").decode("utf-8", "replace"))
    return Content()


class MacOS:
    """Its own scripting, or pngpaste, which is quicker where it is installed."""

    def read(self, programs: Programs) -> Content:
        script = programs.find("osascript")
        if script is None:
            raise PictureError("the clipboard is read by osascript, which is not on PATH; give the path of a file")
        offered = (programs.output([script, "-e", "clipboard info"]) or b"").decode("utf-8", "replace")
        if "furl" in offered:
            path = programs.output([script, "-e", "POSIX path of (the clipboard as «class furl»)"])
            return Content(text=(path or b"").decode("utf-8", "replace"))
        if re.search("PNGf|TIFF|JPEG|GIF|8BPS|BMP", offered):
            program = programs.find("pngpaste")
            if program and (data := programs.output([program, "-"])):
                return Content(bitmap=data)
            shown = programs.output([script, "-e", "the clipboard as «class PNGf»"], limit=2 * MAX_BYTES + 64)
            if found := re.search(rb"PNGf([0-9A-Fa-f]+)", shown or b""):
                return Content(bitmap=_unhex(found[1]))
        if "string" in offered or "utf8" in offered or "ut16" in offered:
            text = programs.output([script, "-e", "the clipboard as text"])
            return Content(text=(text or b"").decode("utf-8", "replace"))
        return Content()


def _unhex(digits: bytes) -> bytes:
    return binascii.unhexlify(digits[: len(digits) // 2 * 2])


class Windows:
    """From inside WSL: Windows answers through its PowerShell, and its paths are translated."""

    def read(self, programs: Programs) -> Content:
        program = programs.find("powershell.exe") or (POWERSHELL if os.access(POWERSHELL, os.X_OK) else None)
        if program is None:
            raise PictureError(
                "the clipboard of Windows is read by powershell.exe, which is not on PATH; give the path of a file"
            )
        script = base64.b64encode(_POWERSHELL_SCRIPT.encode("utf-16-le")).decode()
        options = ("-NoProfile", "-NonInteractive", "-STA", "-EncodedCommand", script)
        said = programs.output([program, *options], limit=2 * MAX_BYTES)
        if said is None:
            raise PictureError("powershell.exe could not read the clipboard of Windows; give the path of a file")
        kind, _, rest = said.lstrip(b"\xef\xbb\xbf").strip().partition(b" ")
        if kind == b"image":
            try:
                return Content(bitmap=base64.b64decode(rest))
            except ValueError:
                raise PictureError("powershell.exe gave something that is no picture; try again") from None
        path = rest.decode("utf-8", "replace").strip().strip('"')
        if kind in (b"file", b"text") and "\n" not in path and re.match(r"[A-Za-z]:\\|\\\\", path):
            return Content(text=_as_uri(programs, path))
        return Content(text=path)


def _as_uri(programs: Programs, path: str) -> str:
    """The address of a file of Windows, as WSL sees it."""
    if (program := programs.find("wslpath")) and (answer := programs.output([program, "-u", path])):
        return Path(answer.decode("utf-8", "replace").strip()).absolute().as_uri()
    drive, _, rest = path.partition(":\\")
    return Path("/mnt", drive.lower(), *rest.split("\\")).as_uri()
