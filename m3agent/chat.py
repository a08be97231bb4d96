"""A conversation with a person: what they say becomes runs of the loop on one growing conversation."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import cast, get_args

from m3agent import __version__
from m3agent.approval import Approver, Mode
from m3agent.budget import Budget
from m3agent.errors import M3Error
from m3agent.events import MessageAdded, Notice, RunEnded, RunStarted
from m3agent.exits import Exit
from m3agent.llm.factory import open_model
from m3agent.llm.protocol import LanguageModel, ModelError
from m3agent.loop import LoopResult, run_loop
from m3agent.messages import Message, user
from m3agent.outputs import Outputs, open_outputs
from m3agent.session.store import SessionStore
from m3agent.settings import Settings, load_settings
from m3agent.signals import interrupt_exit
from m3agent.ui.input import COMMANDS, LineInput, PipeInput, TerminalInput
from m3agent.ui.terminal import TerminalView
from m3agent.workspace import Workspace, open_workspace


async def chat(settings: Settings, repo: Path, *, mode: Mode, first: str, resume: str | None, seed: int | None) -> int:
    """Talk until the person leaves. The exit code is 0, or that of an interrupt.

    Errors: ModelError when the model cannot be opened, M3Error for a session that does not exist.
    """
    history = resumed_messages(settings, resume) if resume else ()
    model = await open_model(settings)
    start = time.monotonic()
    talk: Chat | None = None
    try:
        with open_outputs(settings, resume=resume, result=False) as out:
            code, outcome = Exit.OK, "left"
            if resume:
                out.sink(Notice(text=f"going on with {out.run_id}: {len(history)} messages"))
            else:
                name = model.info.name
                out.sink(
                    RunStarted(
                        run_id=out.run_id, command="chat", model=name, repo=str(repo), task=first, version=__version__
                    )
                )
            try:
                talk = await Chat.open(settings, model, repo, out, mode=mode, seed=seed, history=history)
                await talk.run(first)
            except asyncio.CancelledError as error:
                code, outcome = interrupt_exit(error), "interrupted"
                raise
            finally:
                out.sink(
                    RunEnded(
                        exit_code=code,
                        outcome=outcome,
                        summary=f"m3 chat --resume {out.run_id} goes on from here",
                        duration_s=time.monotonic() - start,
                    )
                )
    finally:
        await (talk.model if talk else model).aclose()
    return 0


class Chat:
    """One conversation: the workspace, the mode, the model, and where lines come from."""

    def __init__(self, settings: Settings, model: LanguageModel, out: Outputs, work: Workspace, lines: LineInput):
        self.settings, self.model, self._out, self._work, self._lines = settings, model, out, work, lines
        self._mode: Mode = "ask"
        self._seed: int | None = None
        self._approve: Approver | None = None
        self._sink = out.sink

    @classmethod
    async def open(
        cls,
        settings: Settings,
        model: LanguageModel,
        repo: Path,
        out: Outputs,
        *,
        mode: Mode,
        seed: int | None,
        history: tuple[Message, ...],
    ) -> Chat:
        work = await open_workspace(settings, model.info, repo, command="chat", outputs=out, history=history)
        at_terminal = sys.stdin.isatty() and isinstance(out.view, TerminalView)
        lines: LineInput = TerminalInput(settings.state_dir, repo) if at_terminal else PipeInput()
        talk = cls(settings, model, out, work, lines)
        talk._mode, talk._seed = mode, seed
        if at_terminal and isinstance(out.view, TerminalView):
            from m3agent.ui.ask import terminal_approver

            talk._approve = terminal_approver(out.view.console, lines, out.view.close)
        return talk

    async def run(self, first: str) -> None:
        """Answer `first`, then every line, until the end of the input or /quit."""
        line: str | None = first
        while line is not None:
            if line.startswith("/"):
                if line.split()[0] in ("/quit", "/exit"):
                    return
                await self._command(line)
            elif line.strip():
                await self._say(line)
            self._out.view.close()
            line = await self._lines.read(f"{self._mode}> ")

    async def _say(self, text: str) -> None:
        """One request and everything that the model does for it. Ctrl-C ends this request, not the chat."""
        self._work.journal.begin_request()
        self._work.conversation.add(user(text))
        budget = Budget(max_steps=self.settings.max_steps, time_limit_s=self.settings.time_limit_s)
        turn = asyncio.create_task(
            run_loop(
                self.model,
                self._work.conversation,
                self._work.tools,
                self._work.context,
                sink=self._sink,
                options=self._work.options(self.settings, self._seed),
                budget=budget,
                mode=self._mode,
                rules=self.settings.rules,
                approve=self._approve,
            )
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, turn.cancel)
        try:
            result = await turn
            if result.detail:
                self._notice(result.detail, "warning")
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                await _settled(turn)
                raise
            self._notice("interrupted; say how to go on", "warning")
        except ModelError as error:
            self._notice(str(error), "error")
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            self._out.view.close()

    async def _command(self, line: str) -> None:
        name, _, rest = line.strip().partition(" ")
        match name:
            case "/help":
                for command, help_text in COMMANDS.items():
                    self._notice(f"{command}  {help_text}")
            case "/undo":
                self._undo()
            case "/mode" if rest in get_args(Mode):
                self._mode = cast(Mode, rest)
                self._notice(f"the mode is now {rest}")
            case "/mode":
                self._notice(f"the mode is {self._mode}; the modes are {', '.join(get_args(Mode))}")
            case "/model" if rest:
                await self._change_model(rest)
            case "/model":
                info = self.model.info
                self._notice(f"{info.name} answers; its window holds {info.context_tokens:,} tokens")
            case _:
                self._notice(f"there is no command {name}; /help lists them", "warning")

    def _undo(self) -> None:
        try:
            for line in self._work.journal.undo_request(own=True) or ["there is nothing to undo"]:
                self._notice(line.strip())
        except M3Error as error:
            self._notice(str(error), "warning")

    async def _change_model(self, name: str) -> None:
        try:
            settings = load_settings(model=name)
            model = await open_model(settings)
        except (M3Error, ModelError) as error:
            self._notice(f"{error}; {self.model.info.name} still answers", "error")
            return
        await self.model.aclose()
        self.settings, self.model = settings, model
        self._notice(f"{model.info.name} answers from now on")

    def _notice(self, text: str, level: str = "info") -> None:
        self._out.sink(
            Notice(text=text, level="error" if level == "error" else "warning" if level == "warning" else "info")
        )
        self._out.view.close()


async def _settled(turn: asyncio.Task[LoopResult]) -> None:
    """Wait until a cancelled turn has left a valid history."""
    turn.cancel()
    await asyncio.wait([turn])


def resumed_messages(settings: Settings, run_id: str) -> tuple[Message, ...]:
    """The conversation of a saved session. A call without a result is answered later on, and never run again."""
    recording = SessionStore(settings.sessions_dir).read(run_id)
    messages = tuple(event.message for event in recording.events if isinstance(event, MessageAdded))
    if not messages:
        raise M3Error(f"the session {recording.run_id} holds no conversation; `m3 sessions list` shows others")
    return messages
