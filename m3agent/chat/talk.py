"""A conversation with a person: what they say becomes runs of the loop on one growing conversation."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from rich.text import Text

from m3_tools.screenshot.picture import Picture
from m3agent.approval import Approver, Mode
from m3agent.budget import Budget
from m3agent.chat import own
from m3agent.chat.custom import custom_commands
from m3agent.chat.inbox import Inbox
from m3agent.chat.meter import Meter
from m3agent.chat.pictures import Pictures
from m3agent.chat.resume import Request
from m3agent.chat.status import status_line
from m3agent.errors import M3Error
from m3agent.events import Notice, RequestStarted, Said
from m3agent.images import image_part, parts_for, read_clipboard_image, read_images, told
from m3agent.llm.protocol import LanguageModel, ModelError
from m3agent.loop import run_loop
from m3agent.messages import Message, user
from m3agent.outputs import Outputs
from m3agent.settings import Settings
from m3agent.sinks import tee
from m3agent.ui.face import Face
from m3agent.ui.input import LineInput, PipeInput
from m3agent.ui.listener import is_command
from m3agent.ui.terminal import TerminalView
from m3agent.workspace import Workspace

MODES: tuple[Mode, ...] = get_args(Mode)


class Chat:
    """One conversation: the workspace, the mode, the model, and where lines come from.

    It hears what is done at a screen (`m3agent.ui.screen.Listener`), if there is one.
    """

    def __init__(
        self,
        settings: Settings,
        model: LanguageModel,
        out: Outputs,
        work: Workspace,
        repo: Path,
        *,
        mode: Mode,
        seed: int | None,
        requests: Sequence[Request] = (),
        lines: LineInput | None = None,
    ):
        """`lines` stand in for those of stdin."""
        self.settings, self.model, self.out, self.work, self.repo = settings, model, out, work, repo
        self.mode: Mode = mode
        self.rules = list(settings.rules)
        """The person's rules, and those that they gave in this chat."""
        self.face = Face()
        self.requests = list(requests)
        """What the person asked for so far, oldest first."""
        self.custom = custom_commands(settings, repo)
        self.meter = Meter()
        self.approve: Approver | None = None
        self.sink = tee(out.sink, self.meter)
        self._seed = seed
        self._attached: list[Picture] = []
        """Pictures that go with the next message."""
        self.pictures = Pictures()
        self._inbox = Inbox()
        self._lines = lines or PipeInput()
        self._running: asyncio.Task[None] | None = None
        self._commands: set[asyncio.Task[None]] = set()

    def listen(self) -> Inbox:
        """Take lines from a screen from now on, instead of stdin."""
        self._lines = self._inbox
        return self._inbox

    async def run(self, first: str) -> None:
        """Answer `first`, then every line, until the end of the input or /quit."""
        line: str | None = first
        while line is not None:
            if line.split()[:1] in (["/quit"], ["/exit"]):
                return
            if is_command(line):
                await self._interruptible(self._command(line))
            elif line.startswith("!"):
                await self._interruptible(own.shell(self, line[1:].strip()))
            elif line.strip():
                await self._interruptible(self.answer(self._heard(line)))
            self.out.view.close()
            if not self.queued:
                self.face.idle()
            line = await self._lines.read()

    @property
    def working(self) -> bool:
        return self._running is not None

    @property
    def busy(self) -> bool:
        return self.working or bool(self._commands)

    @property
    def queued(self) -> tuple[str, ...]:
        return self._inbox.waiting

    def status(self) -> Text:
        jobs = self.work.context.jobs
        return status_line(self.model.info, self.mode, self.meter, jobs=len(jobs.running()) if jobs else 0)

    def submit(self, line: str, *, later: bool = False) -> None:
        """A line from the screen: it waits for its turn, except for a command that only tells or sets something."""
        from m3agent.chat.commands import is_instant

        if self.working and is_instant(self, line):
            self._run_beside(line)
        else:
            self._inbox.put(line, later=later)

    def _run_beside(self, line: str) -> None:
        """Run a command now, whatever else runs."""
        task = asyncio.create_task(self._command_beside(line), name=line)
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    async def _command_beside(self, line: str) -> None:
        """Nobody waits for it, so what the model cannot do is told here."""
        try:
            await self._command(line)
        except ModelError as error:
            self.notice(str(error), "error")

    def expand(self) -> None:
        if isinstance(self.out.view, TerminalView):
            self.out.view.expand()

    def stop(self) -> None:
        if self._commands:
            for task in self._commands:
                task.cancel()
            self.notice(f"stopped: {', '.join(task.get_name() for task in self._commands)}", "warning")
        elif self._running is not None:
            self._running.cancel()

    def leave(self) -> None:
        for task in self._commands:
            task.cancel()
        if self._running is not None:
            self._running.cancel()
        self._inbox.close()

    def take_back(self) -> str:
        return self._inbox.take_back()

    def next_mode(self) -> None:
        """The mode after this one; it holds for the next call, also in a turn that runs."""
        self.mode = MODES[(MODES.index(self.mode) + 1) % len(MODES)]

    def notice(self, text: str, level: Literal["info", "warning", "error"] = "info") -> None:
        self.sink(Notice(text=text, level=level))
        if not self.working:
            self.out.view.close()

    async def _command(self, line: str) -> None:
        from m3agent.chat.commands import run_command

        await run_command(self, line)

    def attach(self, *pictures: Picture) -> None:
        """Let the pictures go with the next message. A model that reads text only gets none, and that is told."""
        info = self.model.info
        self._tell(*pictures)
        if info.reads_images:
            self._attached += pictures

    def _tell(self, *pictures: Picture) -> None:
        for notice in told(pictures, self.model.info, self.settings.image_rule, self.out.spill_dir):
            self.sink(notice)
        if not self.working:
            self.out.view.close()

    def picture_name(self, path: Path | None) -> str:
        return self.pictures.new_name(path)

    async def take_picture(self, name: str, path: Path | None) -> bool:
        """Read what was pasted under this name: a file or, without a path, the clipboard. False after saying why not.

        It goes with the message in which the name stands.
        """
        try:
            picture = await asyncio.to_thread(self._read_picture, path)
        except M3Error as error:
            self.notice(str(error), "warning")
            return False
        self.pictures.add(name, picture)
        self._tell(picture)
        return True

    def _read_picture(self, path: Path | None) -> Picture:
        if path is None:
            return read_clipboard_image(self.settings.command_environment)
        (picture,) = read_images([path])
        return picture

    def _heard(self, line: str) -> Message:
        self.sink(Said(text=line))
        images, self._attached = [image_part(picture) for picture in self._attached], []
        return user(line, *images, *parts_for(self.pictures.named_in(line), self.model.info))

    def _heard_meanwhile(self) -> Sequence[Message]:
        return [self._heard(line) for line in self._lines.messages()]

    def begin_request(self) -> None:
        """What follows is done for something new that the person asked for: it can be undone, and gone back to."""
        request = self.work.journal.begin_request()
        self.requests.append(Request(id=request, at=len(self.work.conversation.messages)))
        self.sink(RequestStarted(request=request))

    async def answer(self, message: Message) -> None:
        """One request and everything that the model does for it, and for what is said meanwhile."""
        self.begin_request()
        self.work.conversation.add(message)
        result = await run_loop(
            self.model,
            self.work.conversation,
            self.work.tools,
            self.work.context,
            sink=self.sink,
            options=self.work.options(self.settings, self._seed),
            budget=Budget(max_steps=self.settings.max_steps, time_limit_s=self.settings.time_limit_s),
            mode=lambda: self.mode,
            rules=self.rules,
            approve=self.approve,
            said=self._heard_meanwhile,
        )
        if result.detail:
            self.notice(result.detail, "warning")
        if result.outcome == "context_full":
            self.notice("/compact replaces the conversation by a summary; /rewind goes back to an earlier part")

    async def _interruptible(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for the work. Esc or Ctrl-C ends it and not the chat; what waits then goes on waiting."""
        self._running = asyncio.create_task(work)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.stop)
        try:
            await self._running
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                self._running.cancel()
                await asyncio.wait([self._running])  # it leaves a valid history
                raise
            self._inbox.hold()
            self.out.view.close()  # what was streamed stands before the notice
            waiting = "; Enter sends what waits" if self._inbox.waiting else ""
            self.notice(f"interrupted; say how to go on{waiting}", "warning")
        except ModelError as error:
            self.out.view.close()
            self.notice(str(error), "error")
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            self._running = None
            self.out.view.close()
            if not self._inbox.waiting:
                self.face.call("is done")
