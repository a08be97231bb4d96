"""`m3 models`: which models can answer, and what is known of one. No weights are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from m3agent.errors import M3Error
from m3agent.settings import load_settings


@click.group()
def command() -> None:
    """List and show the models on this machine."""


@command.command("list")
def list_models() -> int:
    """List the embedded model and the one that the settings choose."""
    from m3agent.commands.doctor import nano_folder

    chosen = load_settings().model
    state = "embedded" if (nano_folder() / "model.safetensors").is_file() else "not in this installation"
    print(f"{'*' if chosen == 'nano' else ' '} nano  {state}")
    if chosen != "nano":
        print(f"* {chosen}")
    return 0


@command.command()
@click.argument("model", default="")
def show(model: str) -> int:
    """Show what the files of a model say: its shape, window and size. MODEL is nano or a checkpoint folder."""
    from m3agent.commands.doctor import nano_folder

    name = model or load_settings().model
    folder = nano_folder() if name == "nano" else Path(name).expanduser()
    for key, value in describe(folder).items():
        print(f"{key:<18} {value}")
    return 0


def describe(folder: Path) -> dict[str, str]:
    """Facts from config.json and the sizes of the weight files. Errors: M3Error when there is no readable config."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise M3Error(f"{path} cannot be read: {error}") from error
    text = config.get("text_config", config)
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    facts = {"folder": folder, "architecture": ", ".join(config.get("architectures", [])) or config.get("model_type")}
    for label, key in (
        ("layers", "num_hidden_layers"),
        ("hidden size", "hidden_size"),
        ("experts", "num_local_experts"),
        ("experts per token", "num_experts_per_tok"),
        ("context tokens", "max_position_embeddings"),
        ("vocabulary", "vocab_size"),
    ):
        facts[label] = text.get(key, config.get(key))
    facts["quantization"] = (config.get("quantization_config") or {}).get("quant_method", "none")
    facts["weights"] = f"{weights / 1e6:,.1f} MB in {len(list(folder.glob('*.safetensors')))} files"
    return {label: str(value) for label, value in facts.items() if value is not None}
