"""From a checkpoint folder to a chat engine that fits this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import m3_model
from m3_model.cache import KVCache
from m3_model.checkpoint import Checkpoint
from m3_model.config import M3Config
from m3_model.loading import load_decoder
from m3_model.share import Share
from m3_model.tokenizer import Tokenizer
from m3_model.vision.config import VisionConfig
from m3_model.vision.resize import ResizeRule, default_rule
from m3_model.vision.video import Sampling
from m3_runtime.chat.session import ChatEngine
from m3_runtime.chat.syntax import IMAGE, IMAGE_END, IMAGE_START, VIDEO
from m3_runtime.chat.template import ChatTemplate
from m3_runtime.chat.viewer import Viewer
from m3_runtime.config import PAGE_TOKENS, SCRATCH_PAGES, DiskConfig, EngineConfig, RanksConfig, pages_for
from m3_runtime.disk_cache import DiskCache
from m3_runtime.engine import Engine
from m3_runtime.fingerprint import fingerprint
from m3_runtime.planner import CHUNKS, DTYPES, Gpu, SingleDevicePlan

_DEFAULT_CONTEXT = 16384
_SPARE_PAGES = 256
"""Pages beside one full context, for the last pages of search beams and for kept prefixes."""


def nano_folder() -> Path:
    """Where the embedded model lies."""
    return Path(m3_model.__file__).parent / "nano"


def load_chat_engine(
    folder: str | Path,
    *,
    name: str = "",
    dtype: str = "auto",
    device: str = "cpu",
    max_context: int | None = None,
    cache_tokens: int | None = None,
    disk: DiskConfig | None = None,
    image_rule: ResizeRule | None = None,
    cuda_graphs: bool = True,
    experts: str = "auto",
    expert_bits: int = 16,
    ranks: RanksConfig | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ChatEngine:
    """Load a checkpoint folder, or the embedded model for "nano".

    `device` is cpu, cuda, or auto for a GPU that the model fits on; `experts` auto, or cpu where it computes with them
    beside a GPU; `expert_bits` 16, or 4 to round them (m3_runtime.planner). `max_context` defaults to the
    model's limit, at most 16384 tokens; `cache_tokens` to one context and some room for search and kept prefixes. With
    `disk`, prefixes are kept for later runs. `image_rule` says how large images are made (m3_model.vision.resize).
    With `ranks` the model is spread over GPUs in bfloat16, whatever `device` and `dtype` say, or over processes of the
    CPU. `progress` is told how many layers are loaded, and of how many.
    ValueError (m3_model's CheckpointError is one) if the folder is not a checkpoint, or cannot be split like that;
    RuntimeError if a rank is lost.
    """
    is_nano = folder == "nano"
    path = nano_folder() if is_nano else Path(folder)
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} has no config.json; give the folder of an M3 checkpoint")
    file_config = M3Config.from_folder(path)
    limit = file_config.max_positions
    if max_context is not None and max_context > limit:
        raise ValueError(f"max_context is {max_context}; this model reads at most {limit} tokens")
    tokenizer = Tokenizer.from_folder(path)
    template = ChatTemplate.from_folder(path)
    context = max_context or min(limit, _DEFAULT_CONTEXT)
    num_pages = max(pages_for(cache_tokens or 0), pages_for(context) + _SPARE_PAGES)
    name = name or ("m3-nano" if is_nano else path.resolve().name)
    if ranks is not None and (experts, expert_bits) != ("auto", 16):
        raise ValueError("experts on the CPU or of 4 bits are for one device: leave them out, or --gpus")
    config = EngineConfig(
        num_pages=num_pages,
        max_context=context,
        vocab_size=min(len(tokenizer), file_config.vocab_size),
        cuda_graphs=cuda_graphs,
    )
    if ranks is not None and ranks.size > 1:
        engine, close = _spread(path, name, ranks, config, disk, progress)
        vision = engine.runner.decoder.vision
        viewer = _viewer(vision.config, tokenizer, image_rule) if vision is not None else None
        return ChatEngine(engine, tokenizer, template, name=name, viewer=viewer, on_close=close)
    if ranks is not None:
        device = "cpu" if ranks.on_cpu else "cuda"
    plan = SingleDevicePlan.choose(
        file_config,
        wanted=device,
        dtype=dtype,
        cache_tokens=num_pages * PAGE_TOKENS,
        gpu=Gpu.find(),
        experts=experts,
        expert_bits=expert_bits,
    )
    decoder = load_decoder(path, dtype=DTYPES[plan.dtype], device=plan.device, experts=plan.experts, progress=progress)
    cache = KVCache.zeros(decoder.config, num_pages + SCRATCH_PAGES, dtype=DTYPES[plan.dtype], device=plan.device)
    config = dataclasses.replace(config, prefill_chunk=plan.prefill_chunk)
    disk_cache = None
    if disk is not None and disk.max_bytes:
        disk_cache = DiskCache(
            disk.folder,
            name,
            fingerprint(path, dtype=f"{plan.dtype} {plan.experts}", device=plan.device),
            page_bytes=cache.bytes_per_page,
            max_bytes=disk.max_bytes,
        )
    return ChatEngine(
        Engine(decoder, cache, config, disk_cache),
        tokenizer,
        template,
        name=name,
        is_nano=is_nano,
        viewer=_viewer(decoder.vision.config, tokenizer, image_rule) if decoder.vision is not None else None,
        plan=plan,
    )


def _spread(
    path: Path,
    name: str,
    config: RanksConfig,
    limits: EngineConfig,
    disk: DiskConfig | None,
    progress: Callable[[int, int], None] | None,
) -> tuple[Engine, Callable[[], None]]:
    """An engine on several ranks, and what ends the other ones."""
    from m3_runtime.parallel.launch import meet_torchrun
    from m3_runtime.parallel.leader import lead
    from m3_runtime.parallel.member import ModelSpec
    from m3_runtime.parallel.ranks import Ranks

    checkpoint = Checkpoint.open(path)  # what is wrong with the files is told before others start
    Share.of(checkpoint.config, 0, config.size, mxfp8=checkpoint.has_quantized_layers)
    device = "cpu" if config.on_cpu else "cuda"
    limits = dataclasses.replace(limits, prefill_chunk=CHUNKS[device])
    ranks = Ranks.start(config.size, device=device, peers=meet_torchrun if config.by_torchrun else None)
    try:
        spec = ModelSpec(
            folder=path.resolve(),
            name=name,
            dtype="float32" if config.on_cpu else "bfloat16",
            num_pages=limits.num_pages + SCRATCH_PAGES,
            encoding_bytes=limits.encoding_bytes,
            engine=limits,
            disk=disk,
        )
        led = lead(ranks, spec, progress)
        return Engine(led.decoder, led.cache, limits, led.disk, runner=led.runner), ranks.close
    except BaseException:
        ranks.close()
        raise


def _viewer(config: VisionConfig, tokenizer: Tokenizer, rule: ResizeRule | None) -> Viewer:
    """ValueError if the tokenizer is not that of a model with an image side."""
    expected = {IMAGE: config.image_token_id, VIDEO: config.video_token_id}
    for marker in (IMAGE, VIDEO, IMAGE_START, IMAGE_END):
        found = tokenizer.token_id(marker)
        if found is None or found != expected.get(marker, found):
            wanted = f", and config.json wants {expected[marker]}" if marker in expected else ""
            raise ValueError(f"the tokenizer's id of {marker} is {found}{wanted}: fetch the checkpoint again")
    return Viewer(config, rule or default_rule(config), Sampling())
