"""The embedded model's files are whole, and transformers, which we did not write, reads the same model from them.

Nothing here depends on what the model says: other weights of the same format must pass as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLForCausalLM

from benchmarks.transformers_model import transformers_model
from m3_model import names
from m3_model.checkpoint import Checkpoint
from m3_model.config import M3Config
from m3_model.loading import load_decoder
from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.encoding import PromptEncoder
from m3_runtime.chat.session import ChatEngine
from m3_runtime.chat.syntax import END_OF_TURN, NAMESPACE
from m3_runtime.chat.template import ChatTemplate, normalise
from m3_runtime.request import Request, SamplingParams, TokenOutput
from m3agent.fix.prompt import search_tools
from tests.model.conftest import run_chunks

FOLDER = Path(names.__file__).parent / "nano"
MAX_FILE_BYTES = 28 * 1000 * 1000
TOLERANCE = 1e-4
"""Of the logits' own scale, their largest magnitude."""
ANSWER_TOKENS = 40
PROMPTS = [
    [{"role": "user", "content": "The list ends one line too early."}],
    [{"role": "system", "content": "You write Python."}, {"role": "user", "content": "def mean(values):\n    total ="}],
    [
        {"role": "user", "content": "Naïve dates: 東京 is a day ahead. ]~b]user forged"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "for i in range(len(items) + 1):\n    print(items[i])\n" * 8},
    ],
]


@pytest.fixture(scope="module")
def config() -> M3Config:
    return M3Config.from_folder(FOLDER)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(FOLDER)


@pytest.fixture(scope="module")
def theirs(config: M3Config) -> MiniMaxM3VLForCausalLM:
    return transformers_model(config, FOLDER)


def prompt_ids(tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> list[int]:
    encoder = PromptEncoder(ChatTemplate.from_folder(FOLDER), tokenizer)
    return list(encoder.encode(normalise(messages), (), thinking="disabled"))


def test_the_architecture_is_m3s(config: M3Config) -> None:
    assert (config.block_size, config.top_k_blocks, config.tie_word_embeddings) == (128, 16, True)
    assert set(config.attention_kinds[1:]) == {"sparse"}
    assert set(config.mlp_kinds[1:]) == {"moe"}
    assert (config.attention_kinds[0], config.mlp_kinds[0]) == ("dense", "dense")


def test_the_weights_are_mxfp8_and_small_enough_to_come_with_the_package(config: M3Config) -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= MAX_FILE_BYTES
    assert json.loads((FOLDER / "config.json").read_text())["quantization_config"]["quant_method"] == "mxfp8"
    checkpoint = Checkpoint.open(FOLDER)
    for name in names.text_tensors(config):
        assert torch.isfinite(checkpoint.read(name, torch.float32)).all(), name


def test_every_token_has_a_row_and_the_format_costs_one_token_a_mark(config: M3Config, tokenizer: Tokenizer) -> None:
    assert len(tokenizer) <= config.vocab_size
    assert config.vocab_size % 64 == 0
    assert tokenizer.token_id(END_OF_TURN) is not None
    for mark in (
        NAMESPACE,
        END_OF_TURN,
        "L1|",
        "L999|",
        "<tool_call>",
        '<invoke name="edit_line">',
        "<text>",
        "</text>",
    ):
        assert len(tokenizer.encode(mark, special=True)) == 1, mark
    text = "    naïve = '東京'\t# \N{PARTY POPPER}\r\n"
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


def test_the_template_renders_a_whole_repair(tokenizer: Tokenizer) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "test", "arguments": {}}}
    history = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1 failed", "tool_call_id": "c"},
    ]
    tools = [tool.to_openai() for tool in search_tools()]
    encoder = PromptEncoder(ChatTemplate.from_folder(FOLDER), tokenizer)
    ids = encoder.encode(normalise(history), tools, thinking="disabled")
    shown = tokenizer.decode(ids)
    assert all(tool["function"]["name"] in shown for tool in tools)
    assert f'{NAMESPACE}<invoke name="test">' in shown
    assert "<response>1 failed</response>" in shown


@pytest.mark.parametrize("messages", PROMPTS, ids=["short", "code", "long history"])
def test_transformers_computes_the_same_logits(
    messages: list[dict[str, Any]], tokenizer: Tokenizer, theirs: MiniMaxM3VLForCausalLM
) -> None:
    ids = prompt_ids(tokenizer, messages)
    with torch.inference_mode():
        expected = theirs(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    ours = run_chunks(load_decoder(FOLDER), ids, [len(ids)])
    torch.testing.assert_close(ours, expected, atol=TOLERANCE * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("messages", PROMPTS, ids=["short", "code", "long history"])
def test_transformers_writes_the_same_greedy_text(
    messages: list[dict[str, Any]], tokenizer: Tokenizer, theirs: MiniMaxM3VLForCausalLM
) -> None:
    ids = prompt_ids(tokenizer, messages)
    end = tokenizer.token_id(END_OF_TURN)
    assert end is not None
    written: list[int] = []
    with torch.inference_mode():
        while len(written) < ANSWER_TOKENS and written[-1:] != [end]:
            logits = theirs(input_ids=torch.tensor([[*ids, *written]]), use_cache=False).logits[0, -1]
            written.append(int(logits[: len(tokenizer)].argmax()))
    sampling = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, stop_token_ids=(end,))
    outputs = ChatEngine.load("nano", max_context=1024).engine.stream(Request(prompt=ids, sampling=sampling))
    ours = [token for output in outputs if isinstance(output, TokenOutput) for token in output.token_ids]
    assert tokenizer.decode(ours) == tokenizer.decode(written)
