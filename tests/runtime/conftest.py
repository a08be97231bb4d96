"""A small random model of M3's architecture with a small tokenizer and a template in M3's syntax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer

from m3_model.cache import KVCache
from m3_model.random_checkpoint import tiny_config, tiny_vision_config, write_random_checkpoint
from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.session import ChatEngine
from m3_runtime.chat.template import ChatTemplate

TEMPLATE = r"""
{%- set ns = ']<]minimax[>[' -%}
{%- macro value(v) -%}
{%- if v is mapping -%}
{%- for k, x in v.items() if x is not none -%}{{ ns }}<{{ k }}>{{ value(x) }}{{ ns }}</{{ k }}>{%- endfor -%}
{%- elif v is iterable and v is not string -%}
{%- for x in v -%}{{ ns }}<item>{{ value(x) }}{{ ns }}</item>{%- endfor -%}
{%- elif v is boolean -%}{{ v | tojson }}
{%- elif v is not none -%}{{ v }}
{%- endif -%}
{%- endmacro -%}
{%- macro shown(c) -%}
{%- if c is string -%}{{ c }}
{%- else -%}
{%- for p in c -%}{{ p.text if p.type == 'text' else ']<]' ~ p.type ~ '[>[' }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{{- ']~!b[' -}}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- ']~b]tool' -}}{%- endif -%}
{{- '\n<response>' ~ shown(m.content) ~ '</response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '[e~[\n' -}}{%- endif -%}
{%- elif m.role == 'assistant' -%}
{{- ']~b]ai\n' ~ ('<mm:think>' ~ m.reasoning_content if m.reasoning_content else '') ~ '</mm:think>' ~ m.content -}}
{%- if m.tool_calls -%}
{{- ns ~ '<tool_call>\n' -}}
{%- for c in m.tool_calls -%}
{{- ns ~ '<invoke name="' ~ c.function.name ~ '">' -}}
{%- for k, x in c.function.arguments.items() if x is not none -%}
{{- ns ~ '<' ~ k ~ '>' ~ value(x) ~ ns ~ '</' ~ k ~ '>' -}}
{%- endfor -%}
{{- ns ~ '</invoke>\n' -}}
{%- endfor -%}
{{- ns ~ '</tool_call>' -}}
{%- endif -%}
{{- '[e~[\n' -}}
{%- else -%}
{{- ']~b]' ~ m.role ~ '\n' ~ shown(m.content) -}}
{%- if loop.first and tools -%}
{{- '\n' -}}{%- for t in tools -%}<tool>{{ t.function | tojson }}</tool>{%- endfor -%}
{%- endif -%}
{{- '[e~[\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- ']~b]ai\n' -}}
{%- if thinking_mode == 'enabled' -%}{{- '<mm:think>' -}}{%- endif -%}
{%- if thinking_mode == 'disabled' -%}{{- '</mm:think>' -}}{%- endif -%}
{%- endif -%}
"""
MARKERS = ["]~!b[", "]~b]", "[e~[", "]!d~[", "]<]minimax[>[", "<mm:think>", "</mm:think>", "]<]image[>["]
MARKERS += ["]<]video[>[", "]<]start of image[>[", "]<]end of image[>["]
TAGS = ["<tool_call>", "</tool_call>", "</invoke>", '<invoke name="edit_line">', '<invoke name="read">', "<response>"]
TAGS += ["</response>", *(f"<{s}{p}>" for p in ("path", "line", "action", "text", "item") for s in ("", "/"))]
LABELS = [f"L{i}|" for i in range(1, 60)]
CORPUS = [
    "def reorder_quantity(stock, level):\n    return max(0, level - stock.count)\n",
    "The test fails: assert 7 == 8 in inventory/stock.py, please replace the line and return the right value.",
]
EDIT_LINE = {
    "type": "function",
    "function": {
        "name": "edit_line",
        "description": "Change one line.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "action": {"type": "string", "enum": ["replace", "insert", "delete"]},
                "line": {"type": "string"},
                "text": {"type": "string"},
            },
            "required": ["path", "action", "line", "text"],
        },
    },
}
READ = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Read a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "start": {"type": "integer"}},
            "required": ["path"],
        },
    },
}
TOOLS: list[dict[str, Any]] = [EDIT_LINE, READ]


def build_tokenizer(folder: Path) -> None:
    """A byte-level BPE with M3's markers as special tokens, whole tags and line labels as ordinary added tokens."""
    inner = HfTokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator(CORPUS * 4, trainer)
    inner.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in MARKERS])
    inner.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAGS + LABELS])
    inner.save(str(folder / "tokenizer.json"))


def small_cache(num_pages: int) -> KVCache:
    """A cache of two layers with two numbers a head, for tests in which no model runs."""
    sizes = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 2, "rotary_dim": 2, "index_heads": 1, "index_dim": 2}
    kinds = {"attention_kinds": ("dense", "sparse"), "mlp_kinds": ("dense", "moe")}
    return KVCache.zeros(tiny_config(**sizes, **kinds), num_pages)


def write_tiny_checkpoint(folder: Path) -> Path:
    """A small random model with all that belongs to one."""
    build_tokenizer(folder)
    write_random_checkpoint(folder, tiny_config(vocab_size=640), seed=3)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete checkpoint folder."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def seeing_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeing")
    write_seeing_checkpoint(folder)
    return folder


def write_seeing_checkpoint(folder: Path) -> None:
    """A complete checkpoint folder of a model that reads images of up to 448 pixels, 16 tokens on each side."""
    build_tokenizer(folder)
    tokenizer = Tokenizer.from_folder(folder)
    ids = {f"{kind}_token_id": tokenizer.token_id(f"]<]{kind}[>[") for kind in ("image", "video")}
    vision = tiny_vision_config(image_size=448, **ids)
    write_random_checkpoint(folder, tiny_config(vocab_size=640, vision=vision), seed=3)
    (folder / "chat_template.jinja").write_text(TEMPLATE)


@pytest.fixture(scope="session")
def tools() -> list[dict[str, Any]]:
    """Two tools in OpenAI's form: edit_line and read."""
    return TOOLS


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="session")
def template() -> ChatTemplate:
    return ChatTemplate(TEMPLATE)


@pytest.fixture
def seeing(seeing_folder: Path) -> ChatEngine:
    return ChatEngine.load(str(seeing_folder), max_context=1024)


@pytest.fixture
def chat(folder: Path) -> ChatEngine:
    return ChatEngine.load(str(folder), max_context=1024)
