"""What a tool is: a name, a description, typed arguments, and a result with two readers.

The model reads `ToolResult.text`; the person sees `ToolResult.display`, which is data, so that sessions can store it
and a replay can show it again. A tool never raises through the loop: `call_tool` turns every error into a result that
says what to do.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from m3_tools.arguments import BadArguments, named_arguments, parse_arguments
from m3_tools.sandbox import Sandbox
from m3_tools.secret import RedactedStream, Secrets

if TYPE_CHECKING:
    from m3_tools.jobs import Jobs


class ToolError(Exception):
    """A refusal or a failure that the model can act on; its text says what happened and what to do."""


class MissingPath(ToolError):
    """A path that does not exist. `call_tool` adds the nearest that do."""

    def __init__(self, name: str, text: str):
        super().__init__(text)
        self.name = name


class ToolArgs(BaseModel):
    """Base of every tool's arguments: unknown names are refused, so that a typo is reported and not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextBlock:
    """Plain text for the person, for instance the head of a file."""

    text: str
    title: str = ""
    kind: Literal["text"] = "text"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiffBlock:
    """A unified diff of one file; `path` is relative to the work tree."""

    path: str
    diff: str
    kind: Literal["diff"] = "diff"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandBlock:
    """A command that ran. `output` is the head and tail that the model saw; the whole text lies at `output_path`.

    Without an exit code it was stopped, or goes on in the background.
    """

    command: str
    exit_code: int | None
    duration_s: float
    output: str
    output_path: str | None = None
    goes_on: bool = False
    kind: Literal["command"] = "command"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestsBlock:
    """Counts of a test run; `failures` are one line each."""

    passed: int
    failed: int
    errors: int
    skipped: int
    duration_s: float
    failures: tuple[str, ...] = ()
    kind: Literal["tests"] = "tests"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TodoBlock:
    """The task list: pairs of (state, text), state one of pending, active, done."""

    items: tuple[tuple[str, str], ...]
    kind: Literal["todo"] = "todo"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PictureBlock:
    """A picture. Its file at `path` is kept with the session; width and height are in pixels."""

    title: str
    path: str
    width: int
    height: int
    kind: Literal["picture"] = "picture"


DisplayBlock = TextBlock | DiffBlock | CommandBlock | TestsBlock | TodoBlock | PictureBlock
_BLOCK_TYPES: dict[str, type[Any]] = {
    "text": TextBlock,
    "diff": DiffBlock,
    "command": CommandBlock,
    "tests": TestsBlock,
    "todo": TodoBlock,
    "picture": PictureBlock,
}


def block_from_json(value: Mapping[str, Any]) -> DisplayBlock:
    """The display block that `dataclasses.asdict` wrote; raises ValueError for an unknown kind."""
    kind = value.get("kind")
    if kind not in _BLOCK_TYPES:
        raise ValueError(f"unknown display block {kind!r}")
    fields = {k: _tuples(v) for k, v in value.items()}
    block: DisplayBlock = _BLOCK_TYPES[str(kind)](**fields)
    return block


def _tuples(value: Any) -> Any:
    """JSON lists as tuples, so that a block read back equals the block written."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedImage:
    """PNG or JPEG that a decoder of ours wrote, so that whoever reads it can."""

    media_type: str
    data: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolResult:
    """What a call gave. A model that sees gets `images` beside the text. `data` is for the program (for instance a
    TestReport); it is never shown or stored.
    """

    text: str
    display: tuple[DisplayBlock, ...] = ()
    images: tuple[EncodedImage, ...] = ()
    is_error: bool = False
    data: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(kw_only=True)
class ToolContext:
    """What a tool may know: the work tree, where long output goes, and what was read so far.

    `root` is absolute and resolved; no tool touches a path outside it, except to read what lies in `spill_dir`.
    `read_hashes` maps a resolved path to the SHA-256 of the bytes last read or written, so that an edit of a file that
    changed in between is refused.
    """

    root: Path
    spill_dir: Path
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    read_hashes: dict[Path, str] = dataclasses.field(default_factory=dict)
    on_output: Callable[[str], None] | None = None
    sandbox: Sandbox | None = None
    """The boundary that commands run in; None runs them with all rights of the person."""
    unconfined: str = ""
    """Why there is no boundary, where the person did not choose to do without; the caller judges by it."""
    jobs: Jobs | None = None
    """Where commands go that take long, and terminals; None lets a call wait for the former, and has none of these."""
    disposable: bool = False
    """Whether the work tree is a copy that is thrown away; the caller judges by it."""
    secrets: Secrets = Secrets()
    """What no tool shows: files that it guards are refused, texts that it knows are redacted."""
    around: Callable[[str, Mapping[str, Any]], AbstractAsyncContextManager[None]] | None = None
    """Entered around each call of a tool that may change files, with its name and arguments."""


A = TypeVar("A", bound=ToolArgs)


class Tool(Generic[A]):
    """One tool. Subclasses set the class fields and implement `run`."""

    name: ClassVar[str]
    description: ClassVar[str]
    args_type: ClassVar[type[ToolArgs]]
    read_only: ClassVar[bool] = True
    needs: ClassVar[str] = ""
    """The tool without which this one is of no use."""

    def only_reads(self, arguments: Mapping[str, Any]) -> bool:
        """Whether this call changes nothing and reaches nobody; the caller judges by it."""
        return self.read_only

    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments, of type object."""
        return self.args_type.model_json_schema()

    async def run(self, args: A, context: ToolContext) -> ToolResult:
        """Do the work. Raises ToolError for what the model can mend. Cancellation must leave nothing running."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """What a model is told of a tool: `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def to_openai(self) -> dict[str, Any]:
        """The tool in the form of the OpenAI chat API and of M3's chat template."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }


def tool_spec(tool: Tool[Any]) -> ToolSpec:
    """The tool's name, description and JSON schema, without the titles that pydantic adds (they only cost tokens)."""
    return ToolSpec(name=tool.name, description=tool.description, parameters=_without_titles(tool.parameters()))


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        is_properties = "properties" in schema and isinstance(schema["properties"], dict)
        kept = {k: v for k, v in schema.items() if not (k == "title" and isinstance(v, str))}
        return {
            k: {name: _without_titles(s) for name, s in v.items()}
            if k == "properties" and is_properties
            else _without_titles(v)
            for k, v in kept.items()
        }
    return [_without_titles(v) for v in schema] if isinstance(schema, list) else schema


async def call_tool(tool: Tool[Any], arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """Check the arguments and run the tool; every failure becomes a result whose text says what to do.

    Secrets in the result and in the live output are redacted.
    """
    if context.on_output is None:
        return _redacted(await _run(tool, arguments, context), context.secrets)
    stream = RedactedStream(context.on_output, context.secrets.redact)
    try:
        result = await _run(tool, arguments, dataclasses.replace(context, on_output=stream.add))
    finally:
        stream.close()
    return _redacted(result, context.secrets)


def _redacted(result: ToolResult, secrets: Secrets) -> ToolResult:
    blocks = tuple(block_from_json(secrets.redact_json(dataclasses.asdict(block))) for block in result.display)
    return dataclasses.replace(result, text=secrets.redact(result.text), display=blocks)


async def _run(tool: Tool[Any], arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    try:
        args = parse_arguments(arguments, tool.args_type)
    except BadArguments as error:
        return ToolResult(text=f"{tool.name} was not run.\n{error}", is_error=True)
    try:
        if tool.read_only or context.around is None:
            return await tool.run(args, context)
        async with context.around(tool.name, named_arguments(arguments, tool.args_type)):
            return await tool.run(args, context)
    except MissingPath as error:
        from m3_tools.nearest import nearest_paths  # an error alone needs it, and it imports this module

        near = await nearest_paths(context, error.name)
        return ToolResult(text=str(error) + (f" Nearest: {', '.join(near)}." if near else ""), is_error=True)
    except ToolError as error:
        return ToolResult(text=str(error), is_error=True)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return ToolResult(text=f"{tool.name} failed: {error.strerror or error}{where}", is_error=True)


def compact_json(value: Any) -> str:
    """JSON on one line, non-ASCII kept."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
