"""Where a change goes, in which order: the patch and the evidence, a branch, a pull request, the person's own files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from m3agent.fix.deliver import (
    apply_in_place,
    check_can_commit,
    check_untouched,
    commit_message,
    commit_on_branch,
    take_back,
    write_patch,
    write_report,
)
from m3agent.fix.markdown import markdown_report
from m3agent.fix.page import PageWatch
from m3agent.fix.pull_request import Target, branches_of, find_target, publish
from m3agent.fix.request import FixRequest
from m3agent.fix.worktree import WorkTree
from m3agent.settings import Settings
from m3agent.undo.journal import UndoJournal


class Handover:
    """What is done with the change of one work tree. A change that is not proven gets a patch alone."""

    def __init__(
        self,
        request: FixRequest,
        settings: Settings,
        repo: Path,
        worktree: WorkTree,
        places: dict[str, Any],
        run_id: str,
        *,
        keep: bool,
    ):
        """`places` is told where everything went. `keep` False leaves nothing in the person's folder."""
        self._request, self._settings, self._repo, self._worktree = request, settings, repo, worktree
        self._places, self._run_id, self._keep = places, run_id, keep
        self._target: Target | None = None
        self.watch: PageWatch | None = None
        """Looks at the page that must have changed, if there is one."""

    def check(self) -> None:
        """What was asked for must be possible: it is known before the work. Errors: M3Error."""
        if self._request.commit or self._request.pull_request:
            check_can_commit(self._worktree.origin)
        if self._request.pull_request:
            self._target = find_target(self._worktree.origin, self._settings.forges)

    def write_patch(self) -> None:
        """Keep the change as a file, in the repository's own folder or else with the state of m3."""
        path = write_patch(
            self._worktree,
            self._request.issue,
            self._run_id,
            self._settings.state_dir,
            beside_the_code=self._keep,
        )
        self._places["patch"] = str(path)

    async def deliver(self, summary: str, build_report: Callable[[], Mapping[str, Any]]) -> None:
        """Hand over a proven change, of which a patch is written already.

        Errors: Ended where the page cannot be seen to have changed; M3Error for what git or the forge refuses.
        """
        secrets, issue, worktree = self._settings.secrets, self._request.issue, self._worktree
        if self.watch is not None and not self.watch.page.is_remote:
            await self.watch.look_after()
        report, patch = build_report(), Path(self._places["patch"])
        page = secrets.redact(markdown_report(report, "fixed", summary))
        self._places["report"] = str(write_report(patch, ".md", page))
        if self._request.in_place:
            check_untouched(worktree)
        if self._request.commit or self._target is not None:
            taken = branches_of(worktree.origin, self._target) if self._target else ()
            message = secrets.redact(commit_message(issue, report))
            self._places["branch"] = commit_on_branch(worktree, issue, message, taken)
        if self._target is not None:
            text = secrets.redact(markdown_report(report, "fixed", summary, with_diff=False))
            self._places["pull_request"] = publish(
                worktree.origin, self._target, issue, branch=self._places["branch"], diff=report["diff"],
                secrets=secrets, body_file=write_report(patch, ".body.md", text),
            )  # fmt: skip
        if self._request.in_place:
            await self._apply()

    async def _apply(self) -> None:
        """Write the change into the person's files, as a step that can be undone; not if the page is then not seen."""
        step = f"fix {self._request.issue.title}"
        with UndoJournal(self._settings.state_dir, self._repo, request=self._run_id).step(step):
            applied = apply_in_place(self._worktree)
            if self.watch is not None and self.watch.page.is_remote:
                with take_back(self._worktree, applied):
                    await self.watch.look_after()
            self._places["applied"] = ", ".join(applied)
