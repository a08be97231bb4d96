"""Train nano's tokenizer: byte-level BPE over code, plus the tokens that M3's syntax and the tools' output are made of.

    python -m training.tokenizer            # reads .data/source.tar.xz, writes model/m3_model/nano/tokenizer.json

Pieces before merging: a word with the space or dot before it, split at underscores (which join the following piece) and
at camel-case humps; one digit at a time; runs of spaces, the last of which joins the word; punctuation; one newline at
a time. No piece crosses a line, so the ids of a line do not depend on the lines around it, and a line that an answer
repeats has the ids that it had in the prompt.

M3's markers are `special`: that is the only kind which `Tokenizer.encode_special_tokens` can turn into ordinary text,
and a file that spells a marker must not become one. Decode with skip_special_tokens=False. Line labels and tags are
ordinary added tokens: they stand for the same text wherever they are, so nothing can be forged with them.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.quality import worth_reading
from training.sources import SourceFile, read_sources

BPE_SIZE = 8192
LABELS = 999
SAMPLE_CHARS = 60_000_000
SEED = 11

PATTERN = (
    # a word, its hump, or its part after an underscore
    r"[ .]?_{0,2}(?:\p{Lu}?[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{Lu}+(?!\p{Ll}))"
    r"| ?\p{N}"
    r"| ?_+"
    r"|\r?\n"
    r"|[^\S\r\n]+(?![^\s])"  # spaces, the last of which is left to the word after them
    r"| ?[^\s\p{L}\p{N}_]+"
    r"|[^\S\r\n]+|\s"
)

CODE_CORPUS = [
    "<fim_prefix>",
    "<fim_middle>",
    "<fim_suffix>",
    "<fim_pad>",
    "<reponame>",
    "<filename>",
    "<gh_stars>",
    "<issue_start>",
    "<issue_comment>",
    "<issue_closed>",
    "<jupyter_start>",
    "<jupyter_text>",
    "<jupyter_code>",
    "<jupyter_output>",
    "<empty_output>",
    "<commit_before>",
    "<commit_msg>",
    "<commit_after>",
]
CODE_CORPUS_2 = [
    "<jupyter_error>",
    "<add_file>",
    "<delete_file>",
    "<rename_file>",
    "<edit_file>",
    "<commit_message>",
    "<empty_source_file>",
    "<repo_struct>",
    "<code_context>",
    "<file_content>",
    "<source_files>",
    "<pr_start>",
    "<review_comment>",
    "<filepath>",
    "<file_sep>",
]

MARKERS = (
    ["]!p~[", *CODE_CORPUS, "]~b]", "[e~[", "]!d~[", "<function_call>", "<code_interpreter>"]
    + [f"]<]{name}[>[" for name in ("speech", "image", "video", "start of speech", "end of speech", "start of image")]
    + [f"]<]{name}[>[" for name in ("end of image", "start of video", "end of video", "vision pad")]
    + ["]~!b[", *CODE_CORPUS_2, "<think>", "</think>"]
    + [f"]<]{name}[>[" for name in ("frame", "start of frame", "end of frame")]
    + ["<|content_altered_placeholder|>", "]<]minimax[>[", "<mm:think>", "</mm:think>"]
)
"""M3's added tokens 200000-200060 in their order, less the two tool-call tags, which are tags here."""

TOOLS = ("read", "grep", "glob", "outline", "edit", "edit_line", "write", "shell", "test", "todo")
PARAMETERS = [
    "path",
    "symbol",
    "start",
    "end",
    "column",
    "action",
    "line",
    "text",
    "old",
    "new",
    "replace_all",
    "content",
    "command",
    "workdir",
    "timeout_s",
    "pattern",
    "glob",
    "tests",
    "items",
    "item",
    "state",
    "ignore_case",
    "literal",
    "context",
    "include_ignored",
]
TAGS = (
    [
        "<tool_call>",
        "</tool_call>",
        "</invoke>",
        "<response>",
        "</response>",
        "<tools>",
        "</tools>",
        "<tool>",
        "</tool>",
    ]
    + [f'<invoke name="{tool}">' for tool in TOOLS]
    + [tag for name in PARAMETERS for tag in (f"<{name}>", f"</{name}>")]
)


def train(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of 8192 byte-level pieces learnt from `texts`, with markers, labels and tags added after them."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_SIZE, initial_alphabet=alphabet, show_progress=False, max_token_length=24
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(marker, normalized=False, special=True) for marker in MARKERS])
    plain = [f"L{number}|" for number in range(1, LABELS + 1)] + TAGS
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in plain])
    return tokenizer


def sample(files: list[SourceFile], chars: int) -> Iterator[str]:
    """A balanced sample: modules in seeded order, each package giving at most a fiftieth."""
    order = sorted(files, key=lambda f: (f.package, f.path))
    random.Random(SEED).shuffle(order)
    given: dict[str, int] = {}
    total = 0
    for file in order:
        if given.get(file.package, 0) > chars // 50 or not worth_reading(file.text):
            continue
        text = file.text[:40_000]
        given[file.package] = given.get(file.package, 0) + len(text)
        total += len(text)
        yield text
        if total >= chars:
            return


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Train nano's tokenizer from the carried archive and installed packages."
    )
    parser.add_argument("--archive", type=Path, default=Path(".data/source.tar.xz"))
    parser.add_argument("--out", type=Path, default=Path("model/m3_model/nano/tokenizer.json"))
    parser.add_argument("--chars", type=int, default=SAMPLE_CHARS)
    options = parser.parse_args(argv)
    files, _ = read_sources(options.archive)
    texts = list(sample(files, options.chars))
    held_back = texts[::50]
    tokenizer = train(text for i, text in enumerate(texts) if i % 50)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(options.out), pretty=False)
    tokenizer.encode_special_tokens = True
    ratio = sum(map(len, held_back)) / sum(len(e.ids) for e in tokenizer.encode_batch_fast(held_back))
    size = tokenizer.get_vocab_size()
    report = {"vocab_size": size, "padded_to_128": -(-size // 128) * 128, "chars_per_token": round(ratio, 3)}
    print(json.dumps({**report, "sample_chars": sum(map(len, texts))}))


if __name__ == "__main__":
    main()
