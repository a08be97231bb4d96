"""Fetch a checkpoint from the hub into its cache on this machine, or into a folder."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

from m3agent.errors import BrokenEnvironment, M3Error, ModelUnavailable

WANTED = ["*.safetensors", "*.json", "*.jinja", "merges.txt", "LICENSE*", "README.md"]
"""What a model is made of and what may be done with it; no code of the repository is fetched."""


def pull(repo_id: str, folder: Path | None) -> Path:
    """Fetch the files that are not here yet, and return the folder of the checkpoint.

    A connection that breaks is taken up again inside its file; a later call keeps the files that are whole. Progress
    goes to stderr. Errors: M3Error for a name the hub does not know, ModelUnavailable when it cannot be reached or
    refuses, BrokenEnvironment when the disk is too small or cannot be written.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    place = folder or Path(constants.HF_HUB_CACHE)
    try:
        # A trial first: it tells the size, and its errors are those of the hub; without it an old folder may be taken
        # for the answer of a hub that cannot be reached.
        quiet = are_progress_bars_disabled()
        disable_progress_bars()
        trial = snapshot_download(repo_id, local_dir=folder, allow_patterns=WANTED, dry_run=True)
        if not quiet:
            enable_progress_bars()
        wanted = [file for file in trial if file.will_download]
        missing = sum(file.file_size or 0 for file in wanted)
        _require_space(place, missing)
        news = f"m3: {len(wanted)} of {len(trial)} files to fetch, {missing / 1e9:,.2f} GB, into {place}"
        print(news, file=sys.stderr, flush=True)
        return Path(snapshot_download(repo_id, local_dir=folder, allow_patterns=WANTED))
    except HFValidationError as error:
        raise M3Error(f"{repo_id} is no name of a model on the hub; expected OWNER/NAME") from error
    except M3Error:
        raise
    except Exception as error:  # errors of the client's HTTP library have no base of their own that is public
        raise _told(repo_id, place, error) from error


def _require_space(place: Path, missing: int) -> None:
    existing = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if missing > free:
        raise BrokenEnvironment(
            f"{missing / 1e9:,.2f} GB are to be fetched, and {place} has {free / 1e9:,.2f} GB free: make room, or give "
            "another place with --to DIR"
        )


def _told(repo_id: str, place: Path, error: Exception) -> M3Error:
    """What to do about an error of the hub, the network or the disk."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    cause: BaseException = error
    while not isinstance(cause, HfHubHTTPError | OfflineModeIsEnabled) and cause.__cause__ is not None:
        cause = cause.__cause__
    hub = constants.ENDPOINT
    if isinstance(cause, OfflineModeIsEnabled):
        return ModelUnavailable(f"{repo_id} cannot be fetched: HF_HUB_OFFLINE forbids it; unset it and try again")
    if isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        if status == 404:
            return M3Error(f"{hub} has no model {repo_id}: check the name")
        if status in (401, 403):
            return ModelUnavailable(
                f"{hub} refuses {repo_id} ({status}): it does not exist, is private, or its licence must be "
                "accepted on its page; then set HF_TOKEN or run `hf auth login`"
            )
        return ModelUnavailable(f"{hub} answers {status} for {repo_id}: try again later; whole files are kept")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return BrokenEnvironment(f"the disk of {place} is full: make room and run the command again, it goes on there")
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return BrokenEnvironment(f"{os.fspath(error.filename)}: {error.strerror}; give another place with --to DIR")
    return ModelUnavailable(
        f"{hub} cannot be reached or broke off ({cause}): check the network and run the command again; whole files are "
        "kept"
    )
