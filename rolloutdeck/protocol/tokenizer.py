"""The vocabulary of a `tokenizer.json`, and the fingerprint by which two runs' token ids are comparable.

The format is that of the Hugging Face `tokenizers` library; only its JSON is read, nothing of it is run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENIZER_BYTES = 256 << 20


def find_tokenizer_file(path: Path) -> Path:
    """The `tokenizer.json` that a path names: itself, or the one in this folder. Raises ValueError with a sentence."""
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"There is no {TOKENIZER_FILE} at {path}.")
    return file.absolute()


def load_vocabulary(file: Path) -> dict[str, int]:
    """Token -> id, added tokens included. Raises OSError, and ValueError with a sentence for anything else."""
    if file.stat().st_size > MAX_TOKENIZER_BYTES:
        raise ValueError(f"{file} is larger than {MAX_TOKENIZER_BYTES >> 20} MiB; is it a tokenizer?")
    try:
        found = json.loads(file.read_bytes())
        vocab = _of_model(found["model"]["vocab"])
        vocab |= {str(added["content"]): int(added["id"]) for added in found.get("added_tokens") or ()}
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{file} is no tokenizer of the tokenizers library.") from error
    return vocab


def _of_model(vocab: Any) -> dict[str, int]:
    """BPE, WordPiece and WordLevel keep {token: id}, Unigram keeps [[token, score]] in the order of ids."""
    if isinstance(vocab, list):
        return {str(entry[0]): number for number, entry in enumerate(vocab)}
    return {str(token): int(number) for token, number in vocab.items()}


def compute_tokenizer_fingerprint(vocab: Mapping[str, int]) -> str:
    """sha256 of the (token, id) list sorted by id, as compact JSON in UTF-8. `vocab` is what `get_vocab()` returns."""
    ordered = sorted(([token, number] for token, number in vocab.items()), key=lambda pair: (pair[1], pair[0]))
    text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
