"""What a run or a chat starts with: the tools and their context in a folder, and the beginning of the conversation."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m3_tools.base import Tool, ToolContext
from m3_tools.jobs import Jobs
from m3_tools.sandbox import reaches_network
from m3agent.confinement import open_confinement
from m3agent.errors import M3Error
from m3agent.events import Notice
from m3agent.llm.protocol import ModelInfo, Options
from m3agent.messages import Message
from m3agent.outputs import Outputs
from m3agent.prompt import Conversation, system_prompt
from m3agent.repository.prefix import Prefix, repository_prefix
from m3agent.settings import Settings
from m3agent.surroundings import surroundings
from m3agent.undo.journal import UndoJournal

if TYPE_CHECKING:
    from m3_tools.mcp.tools import OpenServers

ROOM_FOR_REPOSITORY = 32_000
"""A window smaller than this holds no repository beside the work."""

NANO_ANSWER_TOKENS = 200
NANO_TOOLS = ("read", "grep", "edit_line", "test")
"""The tools that the embedded model was trained with; it gets these and no others."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workspace:
    """A folder made ready for the loop."""

    conversation: Conversation
    tools: tuple[Tool[Any], ...]
    context: ToolContext
    journal: UndoJournal
    servers: OpenServers | None = None
    is_nano: bool = False

    async def close(self) -> list[str]:
        """Stop the servers that give tools, and commands in the background; a line for each of those."""
        try:
            if self.servers is not None:
                await self.servers.close()
        finally:
            stopped = await self.context.jobs.close() if self.context.jobs else []
        return [f"stopped in the background: {job.command} (pid {job.pid})" for job in stopped]

    def branched(self, messages: Sequence[Message], outputs: Outputs) -> Workspace:
        """The same folder and tools with another conversation, whose events go to `outputs`."""
        return dataclasses.replace(
            self,
            conversation=Conversation(outputs.sink, messages),
            context=dataclasses.replace(self.context, spill_dir=outputs.spill_dir),
        )

    def options(self, settings: Settings, seed: int | None = None) -> Options:
        """How the model answers. The embedded one is read greedily and briefly: it only rambles otherwise."""
        if self.is_nano:
            return Options(max_tokens=NANO_ANSWER_TOKENS, temperature=0.0, thinking="disabled", seed=seed)
        return Options(max_tokens=settings.max_tokens, temperature=settings.temperature, seed=seed)


async def open_workspace(
    settings: Settings,
    info: ModelInfo,
    repo: Path,
    *,
    command: str,
    outputs: Outputs,
    history: Sequence[Message] = (),
) -> Workspace:
    """Read the repository for the prompt and make the tools. The system message is the first event.

    With `history`, a resumed conversation, nothing is read again: its beginning stays as the model knows it, and calls
    that were interrupted get their result.
    """
    from m3_tools.run_tests import RunTests
    from m3_tools.screenshot.tool import ScreenshotTool
    from m3_tools.toolset import all_tools

    conversation = Conversation(outputs.sink, history)
    confinement = open_confinement(settings, repo.resolve())
    for note in settings.notes:
        outputs.sink(Notice(text=note, level="warning"))
    if info.note:
        outputs.sink(Notice(text=info.note))
    if history:
        conversation.close_open_calls("interrupted when the session ended; it was not run again")
    else:
        prefix = await asyncio.to_thread(_prefix, settings, info, repo)
        if prefix.text:
            outputs.sink(Notice(text=_in_view(prefix)))
        where = surroundings(
            repo.resolve(), environment=settings.command_environment, has_network=reaches_network(confinement.sandbox)
        )
        conversation.add(system_prompt(info, command=command, surroundings=where, repository=prefix.text))
    confinement.tell(outputs.sink)
    journal = UndoJournal(
        settings.state_dir,
        repo.resolve(),
        request=outputs.run_id,
        warn=lambda text: outputs.sink(Notice(text=text, level="warning")),
    )
    context = ToolContext(
        root=repo.resolve(),
        spill_dir=outputs.spill_dir,
        environment=dict(settings.command_environment),
        sandbox=confinement.sandbox,
        unconfined=confinement.unconfined,
        jobs=Jobs(),
        secrets=settings.secrets,
        around=journal.around,
    )
    if info.is_nano:
        tools = tuple(tool for tool in all_tools() if tool.name in NANO_TOOLS)
    else:
        eyes = (ScreenshotTool(network=settings.network),) if info.reads_images else ()
        tools = all_tools(run_tests=RunTests(compare_runs=True), more=eyes)
    servers = None if info.is_nano or not settings.servers else await _open_servers(settings, context, tools)
    for note in servers.notes if servers else ():
        outputs.sink(Notice(text=note, level="warning"))
    return Workspace(
        conversation=conversation,
        tools=(*tools, *(servers.tools if servers else ())),
        context=context,
        journal=journal,
        servers=servers,
        is_nano=info.is_nano,
    )


async def _open_servers(settings: Settings, context: ToolContext, tools: Sequence[Tool[Any]]) -> OpenServers:
    try:
        from m3_tools.mcp.tools import open_servers
    except ImportError as error:
        raise M3Error(f"MCP servers need the SDK ({error}): pip install 'm3-agent[mcp]'") from error
    return await open_servers(
        settings.servers,
        root=context.root,
        environment=context.environment,
        sandbox=context.sandbox,
        unconfined=context.unconfined,
        taken=[tool.name for tool in tools],
    )


def _in_view(prefix: Prefix) -> str:
    counts = [(prefix.whole, "whole"), (prefix.outlined, "as outlines"), (prefix.named, "by name")]
    shown = ", ".join(f"{n} files {how}" for n, how in counts if n) or "no files"
    return f"the repository is in view: {shown}, about {prefix.tokens:,} tokens"


def _prefix(settings: Settings, info: ModelInfo, repo: Path) -> Prefix:
    room = 0 if info.is_nano or info.context_tokens < ROOM_FOR_REPOSITORY else info.context_tokens // 2
    budget = min(room, settings.repository_tokens)
    return repository_prefix(repo, budget_tokens=budget, outline=_outline, secrets=settings.secrets)


def _outline(path: str, text: str) -> str:
    from m3_tools.outline import outline_of

    return "\n".join(outline_of(path, text.encode()))
