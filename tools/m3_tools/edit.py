"""The `edit` tool: replace pieces of text that stand in a file once."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from m3_tools.base import Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.change import apply_change
from m3_tools.files import check_unchanged, read_bytes
from m3_tools.labels import describe, spans, without_labels
from m3_tools.match import RUNGS, NotFound, Replacement, find
from m3_tools.paths import printable, relative_name, resolve_for_writing
from m3_tools.ripgrep import run_ripgrep
from m3_tools.text import Text, is_binary

MAX_ELSEWHERE = 3


class FurtherEdit(BaseModel):
    """One more replacement in the same file."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    old: str
    new: str
    replace_all: bool = False


class EditArgs(ToolArgs):
    path: str = Field(description="file, relative to the repository")
    old: str = Field(description="the text to replace, as it stands in the file, without labels")
    new: str = Field(description="the text to put there; empty to delete")
    replace_all: bool = Field(default=False, description="replace every occurrence")
    edits: tuple[FurtherEdit, ...] = Field(
        default=(), description="further edits, each found in the file as it is now; all are made or none"
    )

    @model_validator(mode="before")
    @classmethod
    def _first_of_the_list(cls, value: Any) -> Any:
        """A call that has only the list means its first entry by old and new."""
        edits = value.get("edits") if isinstance(value, Mapping) else None
        if isinstance(edits, list | tuple) and edits and isinstance(edits[0], Mapping) and "old" not in value:
            first = {name: edits[0][name] for name in ("old", "new", "replace_all") if name in edits[0]}
            return {**value, **first, "edits": edits[1:]}
        return value


class EditTool(Tool[EditArgs]):
    name: ClassVar[str] = "edit"
    description: ClassVar[str] = (
        "Replace old by new in a file. old must occur exactly once (or set replace_all); take enough lines to make "
        "it unique. Differences in line endings, trailing space or a uniform indentation are tolerated and "
        "reported. If old is not found, nothing changes and the nearest lines are shown. Several changes of one file "
        "go into one call: the first as old and new, the others as edits. Refused if the file changed since it was "
        "read."
    )
    args_type: ClassVar[type[ToolArgs]] = EditArgs
    read_only: ClassVar[bool] = False

    async def run(self, args: EditArgs, context: ToolContext) -> ToolResult:
        path = resolve_for_writing(context, args.path)
        name = relative_name(context.root, path)
        data = read_bytes(path, name)
        check_unchanged(context, path, data, name)
        if is_binary(data):
            raise ToolError(f"{name} is a binary file; edit works on text.")
        source = Text.decode(data)
        wanted = [FurtherEdit(old=args.old, new=args.new, replace_all=args.replace_all), *args.edits]
        try:
            found = _find_all(source, wanted)
        except NotFound as error:
            raise ToolError(f"{error}{await _where_else(context, args.old)}") from None
        edits = sorted((r.start, r.end, r.new) for place in found for r in place.replacements)
        _refuse_overlaps(source, edits)
        said = f"{name}: "
        if len(edits) > 1:
            said += f"{len(edits)} occurrences: " if len(wanted) == 1 else f"{len(edits)} edits: "
        said += describe(spans(source.text, edits))
        rungs = dict.fromkeys(place.rung for place in found if place.rung != RUNGS[0])
        said += "".join(f"; old matched only when {rung} was ignored" for rung in rungs)
        if any(place.had_labels for place in found):
            said += "; the labels in old and new were left out"
        return apply_change(context, path, name, data, source.replace(edits), said)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Found:
    rung: str
    replacements: list[Replacement]
    had_labels: bool


async def _where_else(context: ToolContext, text: str) -> str:
    """A sentence on the files that do hold the text, or nothing: a right edit is sometimes sent to the wrong file."""
    options = ["--multiline", "--fixed-strings", "--files-with-matches", "--null", "--no-messages", "--sort=path"]
    try:
        result = await run_ripgrep(
            context, [*options, "--glob=!.git", "--glob=!.m3", f"--regexp={text}", "--", "."], include_ignored=False
        )
    except ToolError:
        return ""
    names = [printable(os.fsdecode(name).removeprefix("./")) for name in result.head.split(b"\0")[:-1]]
    if not names or not text.strip():
        return ""
    more = f" and {len(names) - MAX_ELSEWHERE} more files" if len(names) > MAX_ELSEWHERE else ""
    return f"\nold stands in {', '.join(names[:MAX_ELSEWHERE])}{more}."


def _find_all(source: Text, wanted: list[FurtherEdit]) -> list[_Found]:
    """Where each edit goes, all judged on the file as it is. Raises ToolError for the first that cannot be made."""
    found = []
    for number, edit in enumerate(wanted, 1):
        try:
            found.append(_find(source, edit))
        except ToolError as error:
            if len(wanted) == 1:
                raise
            raise ToolError(f"None of the {len(wanted)} edits was made, because of edit {number}. {error}") from None
    return found


def _find(source: Text, edit: FurtherEdit) -> _Found:
    if not edit.old:
        raise ToolError("old is empty. Use write for a new file, or edit_line with insert to add lines.")
    bare = FurtherEdit(old=without_labels(edit.old), new=without_labels(edit.new), replace_all=edit.replace_all)
    if not bare.old:
        raise ToolError("old is a label alone. Take the lines around the empty one, or change it with edit_line.")
    if bare == edit:
        return _found(source, edit, had_labels=False)
    if bare.old == edit.old:
        return _found(source, bare, had_labels=True)
    try:
        return _found(source, edit, had_labels=False)  # a file may have such lines itself
    except NotFound:
        return _found(source, bare, had_labels=True)


def _found(source: Text, edit: FurtherEdit, *, had_labels: bool) -> _Found:
    if edit.old == edit.new:
        raise ToolError("old and new are the same; nothing to do.")
    rung, replacements = find(source, edit.old, edit.new, every=edit.replace_all)
    return _Found(rung=rung, replacements=replacements, had_labels=had_labels)


def _refuse_overlaps(source: Text, edits: list[tuple[int, int, str]]) -> None:
    for (_, end, _), (start, _, _) in itertools.pairwise(edits):
        if start < end:
            line = source.text.count("\n", 0, start) + 1
            raise ToolError(f"None of the edits was made: two of them change the same text at L{line}|. Join them.")
