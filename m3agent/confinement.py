"""The boundary around the commands of a run: the sandbox of this machine, with the policy of a work tree."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import tempfile
from pathlib import Path

from m3_tools.runners import RECORDER_FOLDER
from m3_tools.sandbox import Detection, Sandbox, detect, work_tree_policy
from m3agent.events import Notice
from m3agent.settings import Settings
from m3agent.sinks import EventSink


@dataclasses.dataclass(frozen=True, kw_only=True)
class Confinement:
    """How commands run. `unconfined` says why there is no boundary although the person did not do without one."""

    sandbox: Sandbox | None = None
    unconfined: str = ""

    def tell(self, sink: EventSink) -> None:
        """A warning for the person, when the machine offers no boundary."""
        if self.unconfined:
            sink(Notice(text=self.unconfined, level="warning"))


def open_confinement(
    settings: Settings, root: Path, *, origin: Path | None = None, lasting_tmp: bool = True
) -> Confinement:
    """The boundary for commands in `root`. They may also read `origin`, the folder that `root` is a copy of.

    With `lasting_tmp` a command finds at /tmp what the one before left; otherwise each starts with an empty one.
    """
    if not settings.sandbox:
        return Confinement()
    found = detection()
    if found.backend is None:
        return Confinement(
            unconfined="no sandbox works on this machine, so commands run with all your rights "
            f"({found.reason()}). `m3 doctor` shows what was tried; --no-sandbox accepts it."
        )
    given = settings.command_environment
    folders = (*given.get("PATH", "").split(os.pathsep), given.get("VIRTUAL_ENV", ""))
    policy = work_tree_policy(
        root,
        readable=(
            *(Path(prefix) for prefix in (sys.prefix, sys.base_prefix)),
            *(Path(folder) for folder in folders if os.path.isabs(folder)),
            RECORDER_FOLDER,
            settings.state_dir / "output",
            *((origin,) if origin else ()),
        ),
        hidden=(settings.state_dir / "config.toml",),
        scratch=Path(_scratch(root).name) if lasting_tmp else None,
        network=settings.network,
        secrets=settings.secrets,
    )
    policy = dataclasses.replace(
        policy,
        environment=(*policy.environment, *settings.environment),
        guarded=(*policy.guarded, *((origin,) if origin else ())),
    )
    return Confinement(sandbox=Sandbox(found.backend, policy))


@functools.cache
def detection() -> Detection:
    """What works here; it is tried once in a process."""
    return detect()


@functools.cache
def _scratch(root: Path) -> tempfile.TemporaryDirectory[str]:
    """What commands in `root` find at /tmp, until this process ends."""
    return tempfile.TemporaryDirectory(prefix="m3-tmp-", ignore_cleanup_errors=True)
