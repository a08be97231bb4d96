"""M3's tokenizer: text to ids and back, with control over whether markers in a text count.

Markers are the added tokens that steer the conversation (roles, ends, thinking, calls, images). Text that comes from
outside must not be able to spell one, so `encode` asks each time. Other added tokens, such as line labels, are plain
abbreviations and always recognised.
"""

import codecs
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

MARKER_STARTS = ("]<]", "]~", "]!", "[e~[", "<mm:", "</mm:")
"""How M3's own markers begin; they count as markers even where the file does not call them special."""

SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The o200k pre-split, for a vocabulary that comes without tokenizer.json."""


class Tokenizer:
    """Byte-level BPE with added tokens."""

    def __init__(self, data: dict[str, Any]) -> None:
        """Build from the contents of a tokenizer.json."""
        added = [
            {**token, "special": bool(token["special"]) or token["content"].startswith(MARKER_STARTS)}
            for token in data.get("added_tokens", [])
        ]
        self._text = json.dumps({**data, "added_tokens": added, "truncation": None, "padding": None})
        self.inner = tokenizers.Tokenizer.from_str(self._text)
        self.special_ids = frozenset(int(token["id"]) for token in added if token["special"])
        self._added = {int(token["id"]): str(token["content"]) for token in added}
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, folder: Path | str) -> "Tokenizer":
        """Read tokenizer.json, or vocab.json with merges.txt and added_tokens.json.

        Errors: FileNotFoundError that names what is missing.
        """
        folder = Path(folder)
        whole = folder / "tokenizer.json"
        if whole.exists():
            return cls(json.loads(whole.read_text(encoding="utf-8")))
        parts = [folder / name for name in ("vocab.json", "merges.txt", "added_tokens.json")]
        if missing := [path.name for path in parts if not path.exists()]:
            raise FileNotFoundError(f"{folder} has no tokenizer.json, and no {', '.join(missing)}")
        return cls(_from_parts(*parts))

    def __len__(self) -> int:
        """One more than the highest id."""
        return self._size

    @cached_property
    def _size(self) -> int:
        return 1 + max(self.inner.get_vocab(with_added_tokens=True).values())

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """The same tokenizer, to which markers are text."""
        plain = tokenizers.Tokenizer.from_str(self._text)
        plain.encode_special_tokens = True
        return plain

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of a text; markers in it become their ids if `special`, and are spelt out as text if not."""
        ids: list[int] = self._encoder(special).encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """Ids of several texts, encoded in parallel."""
        encodings = self._encoder(special).encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, markers included; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_id(self, literal: str) -> int | None:
        """Id of a token spelt exactly so, or None."""
        token: int | None = self.inner.token_to_id(literal)
        return token

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; nothing for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def incremental(self) -> "IncrementalDecoder":
        """A decoder for ids that come one at a time."""
        return IncrementalDecoder(self)

    def _encoder(self, special: bool) -> Any:
        return self.inner if special else self._plain

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        piece: str | None = self.inner.id_to_token(token_id)
        return b"" if piece is None else bytes(_BYTE_OF[letter] for letter in piece)


class IncrementalDecoder:
    """Turns ids into text as they come; a character is held back until all its bytes are there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never became whole, else nothing."""
        return self._utf8.decode(b"", final=True)


def _byte_alphabet() -> dict[str, int]:
    """The letters with which byte-level BPE writes bytes: printable ones are themselves, others start at U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(b): b for b in printable}, **{chr(0x100 + i): byte for i, byte in enumerate(others)}}


_BYTE_OF = _byte_alphabet()


def _from_parts(vocab: Path, merges: Path, added: Path) -> dict[str, Any]:
    """The contents of a tokenizer.json with the vocabulary, merges and added tokens of three files."""
    inner = tokenizers.Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    ids = json.loads(added.read_text(encoding="utf-8"))
    for literal, token_id in sorted(ids.items(), key=lambda item: int(item[1])):
        inner.add_tokens([AddedToken(literal, normalized=False, special=True)])
        if inner.token_to_id(literal) != token_id:
            raise ValueError(f"{added}: {literal!r} should have id {token_id}, which does not follow the ids before it")
    data: dict[str, Any] = json.loads(inner.to_str())
    return data
