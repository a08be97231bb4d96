"""The local engine behind the seam: one thread computes, events cross over to the event loop as they come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from m3_tools.base import ToolSpec
from m3agent.images import resize_rule
from m3agent.llm.protocol import (
    BadReply,
    CandidateReady,
    ContextFull,
    Finished,
    ModelEvent,
    ModelInfo,
    Options,
    PrefillProgress,
    Refused,
    TextDelta,
    ThinkDelta,
    ToolCallReady,
    Unavailable,
    Usage,
)
from m3agent.llm.wire import message_to_chat
from m3agent.messages import Message, ToolCall
from m3agent.settings import ImageRule

if TYPE_CHECKING:
    from m3_runtime.chat.events import ChatEvent
    from m3_runtime.chat.parser import Call
    from m3_runtime.chat.session import ChatEngine
    from m3_runtime.config import RanksConfig


class InProcessModel:
    """A model in this process. Turns run one by one on one thread; closing a stream stops it at its next step."""

    def __init__(self, engine: ChatEngine):
        self._engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="m3-model")
        self._closed = False

    @classmethod
    async def load(
        cls,
        folder: Path | None,
        *,
        prefixes_dir: Path | None = None,
        disk_cache_bytes: int = 0,
        image_rule: ImageRule = "long_side",
        placement: Mapping[str, Any] = MappingProxyType({}),
        ranks: RanksConfig | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> InProcessModel:
        """Load the checkpoint in `folder`; None is the embedded model. Computed prompts are kept in `prefixes_dir`.

        `placement` says where it computes (Settings.placement), and `ranks` spreads it over GPUs; `progress` is told
        how many layers are loaded, and of how many.

        Errors: Unavailable when torch is missing, or the files are missing, damaged, or of another kind of model.
        """
        try:
            from m3_runtime.chat.session import ChatEngine
            from m3_runtime.config import DiskConfig
        except ImportError as error:
            raise Unavailable(f"a local model needs torch and the m3 runtime: {error}") from error
        what = str(folder) if folder else "the embedded model"
        disk = DiskConfig(folder=prefixes_dir, max_bytes=disk_cache_bytes) if prefixes_dir else None
        rule = None if image_rule == "long_side" else resize_rule(image_rule)  # None: the long side of its config
        cancelled = threading.Event()

        def loaded(done: int, total: int) -> None:
            if cancelled.is_set():
                raise InterruptedError("loading was cancelled")
            if progress is not None:
                progress(done, total)

        try:
            engine = await asyncio.to_thread(
                ChatEngine.load,
                folder or "nano",
                disk=disk,
                image_rule=rule,
                ranks=ranks,
                progress=loaded,
                **placement,
            )
        except asyncio.CancelledError:
            cancelled.set()  # the thread, and with it the other ranks, ends at its next layer
            raise
        except (ValueError, OSError, RuntimeError, KeyError) as error:
            raise Unavailable(f"{what} cannot be loaded: {error}") from error
        return cls(engine)

    @property
    def info(self) -> ModelInfo:
        engine = self._engine
        return ModelInfo(
            name=engine.name,
            context_tokens=engine.context_tokens,
            is_nano=engine.is_nano,
            reads_images=engine.reads_images,
            note=engine.plan.sentence if engine.plan is not None and engine.plan.was_a_choice else "",
        )

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: Options
    ) -> AsyncIterator[ModelEvent]:
        from m3_runtime.chat.parser import BadCall

        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[ChatEvent | None] = asyncio.Queue()
        closed = threading.Event()

        def send(event: ChatEvent | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.put_nowait, event)

        def compute() -> None:
            try:
                if closed.is_set():
                    return
                events = _start(self._engine, messages, tools, options)
                try:
                    for event in events:
                        send(event)
                        if closed.is_set():
                            return
                finally:
                    events.close()
            finally:
                send(None)

        work = loop.run_in_executor(self._thread, compute)
        try:
            problem = ""
            while (event := await arrived.get()) is not None:
                if isinstance(event, BadCall):
                    problem = event.problem
                    continue
                translated = _translate(event)
                if isinstance(translated, Finished) and problem and translated.reason != "length":
                    raise BadReply(f"the model wrote a call that does not parse: {problem}", by_model=True)
                yield translated
            try:
                await work
            except ValueError as error:
                raise _model_error(error) from error
            except (RuntimeError, MemoryError) as error:
                raise Unavailable(f"{self.info.name} failed: {error}") from error
        finally:
            closed.set()
            if not work.done():
                await asyncio.wait([work])
            if not work.cancelled():
                work.exception()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.close)
            self._thread.shutdown(wait=False, cancel_futures=True)


def _start(
    engine: ChatEngine, messages: Sequence[Message], tools: Sequence[ToolSpec], options: Options
) -> Generator[ChatEvent, None, None]:
    from m3_runtime.chat.options import ChatOptions

    chat_options = ChatOptions(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        seed=options.seed,
        thinking=options.thinking,
        tool_choice=options.tool_choice,
        fixed_arguments={name: list(values) for name, values in options.fixed_arguments.items()},
        candidates=options.candidates,
        proposed=[dict(arguments) for arguments in options.proposed],
    )
    chat = [message_to_chat(message, "template") for message in messages]
    return engine.stream(chat, [tool.to_openai() for tool in tools], chat_options)


def _translate(event: ChatEvent) -> ModelEvent:
    """The engine's event in the words of the seam; a call that does not parse has none."""
    from m3_runtime.chat import events, parser

    match event:
        case parser.ThinkDelta(text=text):
            return ThinkDelta(text=text)
        case parser.TextDelta(text=text):
            return TextDelta(text=text)
        case parser.Call():
            return ToolCallReady(call=_call(event))
        case events.PrefillProgress():
            return PrefillProgress(done_tokens=event.done_tokens, total_tokens=event.total_tokens)
        case events.Candidate():
            return CandidateReady(call=_call(event.call), score=event.logprob, proposed=event.proposed)
        case events.Finish(reason=reason, usage=usage):
            counts = Usage(
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
            )
            return Finished(reason=reason, usage=counts)
    raise AssertionError(f"{event!r} is no event of the seam")


def _call(call: Call) -> ToolCall:
    return ToolCall(id=call.id, name=call.name, arguments=call.arguments)


def _model_error(error: ValueError) -> ContextFull | Refused:
    from m3_runtime.request import PromptTooLong

    if isinstance(error, PromptTooLong):
        return ContextFull(str(error), prompt_tokens=error.prompt_tokens, limit_tokens=error.limit_tokens)
    return Refused(str(error))
