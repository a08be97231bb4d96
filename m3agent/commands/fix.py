"""`m3 fix --issue REF`: repair a bug from an issue, and prove it with the tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m3agent.approval import Mode
from m3agent.commands.options import (
    budget_options,
    device_option,
    gpus_option,
    image_options,
    mode_option,
    model_option,
    output_option,
    page_options,
    repo_option,
    sandbox_options,
    seed_option,
)
from m3agent.images import read_images
from m3agent.llm.gpus import check_gpus, follow_if_told
from m3agent.outputs import OutputFormat, open_outputs
from m3agent.settings import Settings, load_settings
from m3agent.signals import run_command

if TYPE_CHECKING:
    from m3_tools.screenshot.picture import Theme


@click.command()
@repo_option
@click.option("--issue", "ref", required=True, metavar="REF", help="A number, an address, a file, or - for stdin.")
@click.option("--base", default="", metavar="COMMIT", help="Start from this commit or branch instead of HEAD.")
@click.option("--test", "test_command", default="", metavar="CMD", help="The command that runs the tests.")
@click.option(
    "--candidates",
    type=click.IntRange(1, 1000),
    default=150,
    show_default=True,
    help="Edits that are tried at most (search strategy).",
)
@click.option(
    "--strategy",
    type=click.Choice(["auto", "agent", "search"]),
    default="auto",
    show_default=True,
    help="agent: the model works freely. search: its proposed edits are tried in turn. auto: search for nano.",
)
@image_options
@page_options
@mode_option("edit", "auto", default="edit")
@click.option("--in-place", is_flag=True, help="Write the proven repair into your files.")
@click.option("--commit", is_flag=True, help="Commit the proven repair on a new branch; your files stay as they are.")
@click.option("--pr", "pull_request", is_flag=True, help="Push that branch and open a draft pull request at the forge.")
@model_option
@device_option
@gpus_option
@budget_options
@sandbox_options
@seed_option
@output_option
def command(
    repo: Path,
    ref: str,
    base: str,
    test_command: str,
    candidates: int,
    strategy: str,
    images: tuple[Path, ...],
    page: str,
    viewport: tuple[int, int],
    theme: Theme,
    selector: str,
    build: str,
    mode: Mode,
    in_place: bool,
    commit: bool,
    pull_request: bool,
    seed: int | None,
    output: OutputFormat,
    **for_settings: Any,
) -> int:
    """Repair the bug that an issue describes, in a work tree of its own, and prove the repair.

    A number is looked up in .m3/issues/N.md, then issues/N.md, then at the forge of the remote. The result is a patch
    under .m3/fixes/; your files change only with --in-place. With --page the page is captured before and after: a
    repair that cannot be seen on it is not called fixed.

    \b
    Exit codes: 0 fixed and proven, 1 not fixed, 2 wrong usage or no such issue,
    3 no test shows it, 4 no tests to prove it, 5 a limit was reached, 6 an approval
    was needed, 7 the tests or the browser cannot start, 75 the model is unavailable.
    """
    from m3agent.fix.intake import load_issue
    from m3agent.fix.page import chosen_page
    from m3agent.llm.factory import check_model_name

    settings = load_settings(repo=repo, **for_settings)
    follow_if_told(settings)
    check_model_name(settings.model)
    check_gpus(settings)
    looked_at = None
    if page:
        looked_at = chosen_page(
            page, repo, settings, viewport=viewport, theme=theme, selector=selector, build=build,
            in_place=in_place, commit=commit or pull_request,
        )  # fmt: skip
    chosen = {
        "repo": repo,
        "issue": load_issue(ref, repo, settings),
        "base": base,
        "test_command": test_command,
        "candidates": candidates,
        "strategy": strategy,
        "pictures": read_images(images),
        "page": looked_at,
        "build": build,
        "mode": mode,
        "in_place": in_place,
        "commit": commit,
        "pull_request": pull_request,
        "seed": seed,
    }
    return run_command(lambda: _fix(settings, chosen, output))


async def _fix(settings: Settings, chosen: dict[str, object], output: OutputFormat) -> int:
    from m3agent.fix.flow import Fix
    from m3agent.fix.request import FixRequest

    with open_outputs(settings, output=output) as out:
        request = FixRequest(**chosen)  # type: ignore[arg-type]  # click has checked every value
        return await Fix(request, settings, out.sink, run_id=out.run_id, spill_dir=out.spill_dir).run()
