"""From the one value `--model` to a model."""

from __future__ import annotations

import re
from pathlib import Path

from m3agent.errors import M3Error, ModelUnavailable
from m3agent.llm.gpus import check_gpus, loading_bar, ranks_config
from m3agent.llm.protocol import LanguageModel
from m3agent.settings import Settings


async def open_model(settings: Settings) -> LanguageModel:
    """The model that `settings.model` names: `nano`, a checkpoint folder, a URL, or `scripted:FILE`.

    Errors: Unavailable when the server or the files cannot be reached or loaded, Refused for a bad key,
    M3Error for a name that is none of these.
    """
    name = settings.model
    check_model_name(name)
    check_gpus(settings)
    if name.startswith(("http://", "https://")):
        from m3agent.llm.endpoint import EndpointModel

        url, _, model = name.partition("#")
        return await EndpointModel.connect(url, api_key=settings.api_key, model=model)
    if name.startswith("scripted:"):
        from m3agent.llm.scripted import ScriptedModel

        return ScriptedModel.from_file(Path(name.removeprefix("scripted:")).expanduser())
    from m3agent.llm.in_process import InProcessModel

    return await InProcessModel.load(
        None if name == "nano" else Path(name).expanduser(),
        prefixes_dir=settings.prefixes_dir,
        disk_cache_bytes=settings.disk_cache_bytes,
        image_rule=settings.image_rule,
        placement=settings.placement,
        ranks=ranks_config(settings),
        progress=loading_bar(settings),
    )


def check_model_name(name: str) -> None:
    """Tell a wrong name before any work is done for it. Nothing is loaded or reached.

    Errors: M3Error for a name that is no model, Unavailable for a folder that holds no checkpoint.
    """
    if name == "nano" or name.startswith(("http://", "https://", "scripted:")):
        return
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelUnavailable(f"{name} has no config.json; give the folder of an M3 checkpoint")
        return
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not Path(name).parent.is_dir():
        raise M3Error(
            f"{name} looks like a hub id. Fetch it first (`m3 models pull {name}`), then give --model the folder"
        )
    raise M3Error(f"there is no model {name!r}: give nano, a checkpoint folder, or a URL such as http://host:8000/v1")
