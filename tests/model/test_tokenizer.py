"""Text to ids and back, with the tokenizers library as oracle."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from m3_model.tokenizer import SPLIT, Tokenizer

CORPUS = [
    "def add(a, b):\n    return a + b  # día ñandú 日本語 🙂🙂\n",
    "class Stock:\n\tlevel = 3\r\n",
    "it's we're I'll 2024",
]
MARKERS = ["]!p~[", "<fim_prefix>", "]~b]", "[e~[", "]<]minimax[>[", "<mm:think>", "</mm:think>", "<tool_call>"]
LABELS = ["L1|", "L34|"]


def build_inner() -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    )
    return inner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json whose file calls only some of the markers special."""
    inner = build_inner()
    inner.add_tokens([AddedToken(m, normalized=False, special=m == "[e~[") for m in MARKERS])
    inner.add_tokens([AddedToken(label, normalized=False) for label in LABELS])
    folder = tmp_path_factory.mktemp("tokenizer")
    inner.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


def pieces() -> st.SearchStrategy[str]:
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    return st.lists(st.one_of(st.sampled_from(MARKERS + LABELS + CORPUS), text), max_size=8).map("".join)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(pieces(), st.booleans())
def test_decoding_gives_the_text_back(tokenizer: Tokenizer, text: str, special: bool) -> None:
    ids = tokenizer.encode(text, special=special)
    assert tokenizer.decode(ids) == text
    decoder = tokenizer.incremental()
    parts = [decoder.push(i) for i in ids]
    assert "".join(parts) + decoder.flush() == text
    assert not any("\ufffd" in part for part in parts) or "\ufffd" in text


@settings(max_examples=200, deadline=None, derandomize=True)
@given(pieces())
def test_text_from_outside_cannot_spell_a_marker(tokenizer: Tokenizer, text: str) -> None:
    assert not tokenizer.special_ids.intersection(tokenizer.encode(text, special=False))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(pieces())
def test_ids_are_those_of_the_library(tokenizer: Tokenizer, folder: Path, text: str) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = library.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, special=True) == ids
    assert library.decode(ids, skip_special_tokens=False) == tokenizer.decode(ids)
    assert tokenizer.encode_batch([text, ""], special=True) == [ids, []]


def test_markers_and_labels_are_one_token(tokenizer: Tokenizer) -> None:
    for literal in MARKERS + LABELS:
        assert tokenizer.encode(literal, special=True) == [tokenizer.token_id(literal)]
    for label in LABELS:
        assert tokenizer.encode(label, special=False) == [tokenizer.token_id(label)]
    assert len(tokenizer.encode("]<]minimax[>[", special=False)) > 1
    assert tokenizer.special_ids == {tokenizer.token_id(m) for m in MARKERS if m not in ("<fim_prefix>", "<tool_call>")}


def test_a_character_is_held_back_until_it_is_whole(tokenizer: Tokenizer) -> None:
    whole = "€".encode()
    ids = [i for byte in whole for i in range(len(tokenizer)) if tokenizer.token_bytes(i) == bytes([byte])]
    decoder = tokenizer.incremental()
    assert [decoder.push(i) for i in ids] == ["", "", "€"]
    assert decoder.push(ids[0]) == ""
    assert decoder.flush() == "\ufffd"


def test_ids_without_a_token_are_empty(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(len(tokenizer) + 5) == b""
    assert tokenizer.token_id("no such token") is None


def test_separate_vocabulary_files_give_the_same_ids(tmp_path: Path) -> None:
    inner = build_inner()
    inner.model.save(str(tmp_path))
    size = inner.get_vocab_size()
    added = {marker: size + i for i, marker in enumerate(MARKERS)}
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text in CORPUS:
        assert tokenizer.encode(text, special=True) == inner.encode(text).ids
    assert tokenizer.encode("".join(MARKERS), special=True) == list(added.values())
    assert tokenizer.special_ids == set(added.values())
    assert len(tokenizer) == size + len(MARKERS)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"]~b]": size + 3}))
    with pytest.raises(ValueError, match="should have id"):
        Tokenizer.from_folder(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no vocab\.json, merges\.txt, added_tokens\.json"):
        Tokenizer.from_folder(tmp_path)
