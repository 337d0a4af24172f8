"""Reads the vocabulary of a `tokenizer.json` of Hugging Face as JSON, and computes the fingerprint of its ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENIZER_BYTES = 256 << 20


def find_tokenizer_file(path: Path) -> Path:
    """Returns the path itself, or the `tokenizer.json` in this folder. Raises ValueError if there is no such file."""
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"There is no {TOKENIZER_FILE} at {path}.")
    return file.absolute()


def load_vocabulary(file: Path) -> dict[str, int]:
    """Returns token -> id, including added tokens. Raises OSError, and ValueError if the file is not a tokenizer."""
    if file.stat().st_size > MAX_TOKENIZER_BYTES:
        raise ValueError(f"{file} is larger than {MAX_TOKENIZER_BYTES >> 20} MiB; is it a tokenizer?")
    try:
        tokenizer = json.loads(file.read_bytes())
        vocab = _parse_vocabulary(tokenizer["model"]["vocab"])
        vocab |= {str(added["content"]): int(added["id"]) for added in tokenizer.get("added_tokens") or ()}
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{file} is not a tokenizer of the tokenizers library.") from error
    return vocab


def _parse_vocabulary(vocab: Any) -> dict[str, int]:
    """Returns token -> id. BPE, WordPiece, WordLevel have {token: id}; Unigram has [[token, score]] ordered by id."""
    if isinstance(vocab, list):
        return {str(entry[0]): number for number, entry in enumerate(vocab)}
    return {str(token): int(number) for token, number in vocab.items()}


def compute_tokenizer_fingerprint(vocab: Mapping[str, int]) -> str:
    """Returns the sha256 of the (token, id) list of `get_vocab()`, sorted by id, as compact JSON in UTF-8."""
    ordered = sorted(([token, number] for token, number in vocab.items()), key=lambda pair: (pair[1], pair[0]))
    text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
