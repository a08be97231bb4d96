"""Completion in a draft: `/commands` at its beginning, `@files` of the repository anywhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from m3agent.ui.clean import clean

MAX_SHOWN = 30
KEPT_S = 5.0
"""How long a list of the files is good for."""
_MENTION = re.compile(r'(?:^|(?<=\s))@(?:"(?P<quoted>[^"\n]*)|(?P<plain>[^\s"]*))$')


class ChatCompleter(Completer):
    """Completes command names from `commands`, and file names from what `list_files` gives."""

    def __init__(
        self,
        commands: Mapping[str, str],
        list_files: Callable[[], Sequence[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._commands, self._list_files, self._clock = commands, list_files, clock
        self._names: Sequence[str] = ()
        self._until = float("-inf")

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and not re.search(r"\s", text):
            for name, help_text in self._commands.items():
                if name.startswith(text):
                    yield Completion(name, start_position=-len(text), display_meta=help_text)
        elif found := _MENTION.search(text):
            for name in ranked(found["quoted"] or found["plain"] or "", self._files()):
                yield Completion(mention(name), start_position=-len(found[0]), display=name)

    def _files(self) -> Sequence[str]:
        if self._clock() > self._until:
            self._names = [name for name in self._list_files() if clean(name) == name and "\n" not in name]
            self._until = self._clock() + KEPT_S
        return self._names


def mention(name: str) -> str:
    """A file name as it stands in a draft; in quotes if it holds white space."""
    return f'@"{name}"' if re.search(r"\s", name) else f"@{name}"


def ranked(query: str, names: Iterable[str], limit: int = MAX_SHOWN) -> list[str]:
    """The names that hold the characters of the query in their order, the best first.

    A file whose own name begins with the query stands before one that holds it, then the whole path counts; among
    equals the shorter path is first. Case does not matter.
    """
    wanted = query.casefold()
    return [name for _, name in sorted(_scored(wanted, names))[:limit]]


def _scored(wanted: str, names: Iterable[str]) -> Iterator[tuple[tuple[int, int], str]]:
    for name in names:
        path = name.casefold()
        last = path.rpartition("/")[2]
        if last.startswith(wanted):
            rank = 0
        elif wanted in last:
            rank = 1
        elif wanted in path:
            rank = 2
        elif _in_order(wanted, last):
            rank = 3
        elif _in_order(wanted, path):
            rank = 4
        else:
            continue
        yield (rank, len(name)), name


def _in_order(wanted: str, text: str) -> bool:
    rest = iter(text)
    return all(character in rest for character in wanted)
