"""One page of the cache as a file: a name that says what it holds, and a content that is checked when it is read.

A page is named by a hash over everything that led to it: the model, the layout of a page, and all tokens up to its
last, those of images by their content. Two prompts that begin alike share the files of their beginning, and a page of
another model has another name. The head repeats the name, so that a file which was renamed or copied is not believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import xxhash

from m3_runtime.page_folder import SUFFIX, UNFINISHED
from m3_runtime.visuals import TokenKey

FORMAT = 2
"""Raised whenever a file is laid out differently; it is part of every name."""
_HEAD = struct.Struct("<8sI32sQ4xQ")
"""Mark, format, name, bytes of the content, XXH3 of the content, which is as fast as reading memory."""
_MARK = b"m3 page\n"
HEAD_BYTES = _HEAD.size


class BadPage(Exception):
    """A file that is not the page that was looked for; the text says why."""


def first_name(fingerprint: bytes) -> bytes:
    """What the names of all pages of one model begin from; `fingerprint` stands for its weights and its layout."""
    return hashlib.sha256(b"m3 prefix %d\n" % FORMAT + fingerprint).digest()


def next_name(before: bytes, tokens: Sequence[TokenKey]) -> bytes:
    """The name of the page that holds `tokens`, behind the page called `before`."""
    try:
        ids, contents = array("i", cast("Sequence[int]", tokens)), b""
    except TypeError:  # some of them are of images
        ids = array("i", [token if isinstance(token, int) else -1 for token in tokens])
        contents = b"".join(token for token in tokens if isinstance(token, bytes))
    return hashlib.sha256(before + ids.tobytes() + contents).digest()


def write_page_file(folder: Path, name: bytes, content: bytearray, *, used_ns: int) -> None:
    """Put a page into the folder, all of it or nothing; `used_ns` becomes its time of change. Raises OSError.

    It is not synced: after a power cut a torn file fails its check, and the page is computed again.
    """
    handle, unfinished = tempfile.mkstemp(dir=folder, suffix=UNFINISHED)
    try:
        with open(handle, "wb", buffering=0) as file:
            head = _HEAD.pack(_MARK, FORMAT, name, len(content), xxhash.xxh3_64_intdigest(content))
            for part in (memoryview(head), memoryview(content)):
                while part:
                    part = part[file.write(part) :]
        os.utime(unfinished, ns=(used_ns, used_ns))
        os.replace(unfinished, folder / (name.hex() + SUFFIX))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        raise


def read_page_file(folder: Path, name: bytes, target: memoryview) -> bool:
    """Fill `target` with the content of a page; False if there is no such file.

    Raises BadPage, or OSError if it cannot be read; what stands in `target` then is worth nothing.
    """
    # As few calls as possible: many threads read at a time, and each call takes Python's lock once more.
    try:
        file = os.open(f"{folder}/{name.hex()}{SUFFIX}", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        head = bytearray(HEAD_BYTES)
        done = os.preadv(file, [head, target], 0)
        if done < HEAD_BYTES:
            raise BadPage("it was cut off")
        mark, form, found, size, expected = _HEAD.unpack(head)
        if mark != _MARK or form != FORMAT:
            raise BadPage("it has another format")
        if found != name or size != len(target):
            raise BadPage("it is the page of another prompt or model")
        while done < HEAD_BYTES + size:
            count = os.preadv(file, [target[done - HEAD_BYTES :]], done)
            if not count:
                raise BadPage("it was cut off")
            done += count
    finally:
        os.close(file)
    if xxhash.xxh3_64_intdigest(target) != expected:
        raise BadPage("its checksum is wrong")
    return True
