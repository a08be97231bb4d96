"""`m3 cache`: the prompts that local models have computed and keep on disk."""

from __future__ import annotations

from pathlib import Path

import click

from m3agent.errors import BrokenEnvironment, M3Error
from m3agent.settings import load_settings


@click.group()
def command() -> None:
    """List and clear the prompts that local models keep on disk, so that they need not compute them again."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_models(as_json: bool) -> int:
    """List the models of which prompts are kept, the one used last first."""
    import dataclasses
    import datetime
    import json

    from m3_runtime.config import PAGE_TOKENS
    from m3_runtime.page_folder import stored_models

    models = stored_models(_folder())
    for model in models:
        if as_json:
            print(json.dumps(dataclasses.asdict(model)))
        else:
            used = datetime.datetime.fromtimestamp(model.last_used_s)
            tokens = f"{model.num_pages * PAGE_TOKENS:,} tokens"
            print(f"{model.name:<40}  {tokens:>18}  {_megabytes(model.num_bytes):>14}  used {used:%Y-%m-%d %H:%M}")
    if not as_json:
        print(f"{_megabytes(sum(model.num_bytes for model in models))} in {_folder()}")
    return 0


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
def clear(names: tuple[str, ...]) -> int:
    """Remove what is kept of all models, or of those named as `m3 cache list` shows them."""
    from m3_runtime.page_folder import clear as clear_pages
    from m3_runtime.page_folder import stored_models

    folder = _folder()
    known = {model.name for model in stored_models(folder)}
    for name in names:
        if name not in known:
            raise M3Error(f"nothing is kept of {name!r}; `m3 cache list` shows the names")
    try:
        freed = sum(clear_pages(folder, name) for name in names) if names else clear_pages(folder)
    except OSError as error:
        raise BrokenEnvironment(f"{error.filename} cannot be removed: {error.strerror}") from error
    print(f"{_megabytes(freed)} removed")
    return 0


def _folder() -> Path:
    folder = load_settings().prefixes_dir
    assert folder is not None
    return folder


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
