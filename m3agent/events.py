"""What happens in a run, as values: the terminal, the JSON output, the session file and the replay all read these.

Events flow one way, from the loop and from `fix` to whoever watches. Each is a frozen dataclass with a `kind`; the JSON
form is `{"kind": …, …fields}` and reads back equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from m3_tools.base import DisplayBlock, PictureBlock, block_from_json
from m3agent.messages import Message, message_from_json, message_to_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStarted:
    """A run begins. `command` is fix, run or chat; `model` is the name that every screen shows."""

    run_id: str
    command: str
    model: str
    repo: str
    task: str
    version: str
    kind: Literal["run_started"] = "run_started"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixAsked:
    """All that a fix depends on beside the code and the model, so that it can be run again.

    `base` is the commit that the work started from, empty for a copy of files that are in no commit; `issue` is the
    cleaned issue, `choices` are the options as they were in the end.
    """

    base: str
    issue: Mapping[str, Any]
    choices: Mapping[str, Any]
    kind: Literal["fix_asked"] = "fix_asked"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseStarted:
    """A named part of a run begins, for instance baseline, locate, candidates, verify."""

    name: str
    detail: str = ""
    kind: Literal["phase_started"] = "phase_started"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseEnded:
    name: str
    summary: str
    duration_s: float
    kind: Literal["phase_ended"] = "phase_ended"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnStarted:
    """The model is asked. `turn` counts from 1 within the run."""

    turn: int
    kind: Literal["turn_started"] = "turn_started"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefill:
    done_tokens: int
    total_tokens: int
    kind: Literal["prefill"] = "prefill"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThinkText:
    text: str
    kind: Literal["think_text"] = "think_text"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerText:
    text: str
    kind: Literal["answer_text"] = "answer_text"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnEnded:
    """The model's turn is complete. The three token counts are those of this turn."""

    turn: int
    finish: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    duration_s: float
    kind: Literal["turn_ended"] = "turn_ended"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MessageAdded:
    """A message entered the conversation; the conversation is the sequence of these, in order."""

    message: Message
    kind: Literal["message_added"] = "message_added"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestStarted:
    """A person asks for something in a chat: the next message begins it. `request` is its name in the undo history."""

    request: str
    kind: Literal["request_started"] = "request_started"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Said:
    """What a person wrote in a chat, as a view shows it."""

    text: str
    kind: Literal["said"] = "said"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Aside:
    """A question and its answer beside the conversation, which holds neither."""

    question: str
    answer: str
    kind: Literal["aside"] = "aside"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolStarted:
    call_id: str
    name: str
    arguments: Mapping[str, Any]
    kind: Literal["tool_started"] = "tool_started"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolOutput:
    """A piece of a running tool's output, as it comes."""

    call_id: str
    text: str
    kind: Literal["tool_output"] = "tool_output"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolEnded:
    """A call's result. `rule` says why the call was allowed to run, or why not; empty where nothing was judged."""

    call_id: str
    name: str
    is_error: bool
    duration_s: float
    text: str
    display: tuple[DisplayBlock, ...] = ()
    rule: str = ""
    kind: Literal["tool_ended"] = "tool_ended"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidateTried:
    """One candidate edit was tried. `verdict` is fixed, still_failing, regressed, broken (does not parse or hangs)."""

    index: int
    total: int
    score: float
    path: str
    diff: str
    verdict: Literal["fixed", "still_failing", "regressed", "broken"]
    detail: str
    duration_s: float
    kind: Literal["candidate_tried"] = "candidate_tried"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notice:
    """One line for the person: a warning, or something that was skipped and why. `pictures` are what it speaks of."""

    text: str
    level: Literal["info", "warning", "error"] = "info"
    pictures: tuple[PictureBlock, ...] = ()
    kind: Literal["notice"] = "notice"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunEnded:
    """The run is over. `report` is the machine-readable result (for `fix`, the evidence), JSON values only."""

    exit_code: int
    outcome: str
    summary: str
    duration_s: float
    report: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kind: Literal["run_ended"] = "run_ended"


Event: TypeAlias = (
    RunStarted
    | FixAsked
    | PhaseStarted
    | PhaseEnded
    | TurnStarted
    | Prefill
    | ThinkText
    | AnswerText
    | TurnEnded
    | MessageAdded
    | RequestStarted
    | Said
    | Aside
    | ToolStarted
    | ToolOutput
    | ToolEnded
    | CandidateTried
    | Notice
    | RunEnded
)

_EVENT_TYPES: dict[str, type[Any]] = {cls.__dataclass_fields__["kind"].default: cls for cls in Event.__args__}


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as plain JSON values, `kind` first."""
    fields = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
    if isinstance(event, MessageAdded):
        fields["message"] = message_to_json(event.message)
    if isinstance(event, ToolEnded):
        fields["display"] = [dataclasses.asdict(block) for block in event.display]
    if isinstance(event, Notice):
        pictures = fields.pop("pictures")
        if pictures:  # most notices have none
            fields["pictures"] = [dataclasses.asdict(block) for block in pictures]
    kind = fields.pop("kind")
    return {"kind": kind, **fields}


def event_from_json(value: Mapping[str, Any]) -> Event:
    """The event that `event_to_json` wrote. Raises ValueError, KeyError or TypeError for anything else."""
    kind = value.get("kind")
    if kind not in _EVENT_TYPES:
        raise ValueError(f"unknown event {kind!r}")
    fields = dict(value)
    if kind == "message_added":
        fields["message"] = message_from_json(value["message"])
    if kind == "tool_ended":
        fields["display"] = tuple(block_from_json(block) for block in value["display"])
    if kind == "notice":
        fields["pictures"] = tuple(block_from_json(block) for block in value.get("pictures", ()))
    event: Event = _EVENT_TYPES[str(kind)](**fields)
    return event
