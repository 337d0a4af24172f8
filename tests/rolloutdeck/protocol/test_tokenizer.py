"""The vocabulary of a tokenizer file, and its fingerprint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models

from rolloutdeck.protocol import tokenizer

REAL = Path(__file__).parents[2] / "data" / "tokenizer" / "tokenizer.json"


def create_unigram() -> Tokenizer:
    return Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("中", -2.0)], unk_id=0))


def create_word_level() -> Tokenizer:
    return Tokenizer(models.WordLevel({"[UNK]": 0, "b": 2, "a": 1}, unk_token="[UNK]"))


@pytest.mark.parametrize("create", [lambda: Tokenizer.from_file(str(REAL)), create_unigram, create_word_level])
@pytest.mark.parametrize("added", [[], [AddedToken("<|end|>", special=True), AddedToken("a")]])
def test_the_vocabulary_is_the_one_that_the_library_reads(create: Any, added: list[Any], tmp_path: Path) -> None:
    real = create()
    real.add_tokens(added)
    real.save(str(tmp_path / "tokenizer.json"))
    result = tokenizer.load_vocabulary(tokenizer.find_tokenizer_file(tmp_path))
    assert result == real.get_vocab()
    assert tokenizer.compute_tokenizer_fingerprint(result) == tokenizer.compute_tokenizer_fingerprint(real.get_vocab())


def test_the_fingerprint_depends_on_tokens_and_ids_and_not_on_their_order() -> None:
    fingerprints = [
        tokenizer.compute_tokenizer_fingerprint(vocab)
        for vocab in ({"a": 0, "b": 1}, {"b": 1, "a": 0}, {"a": 1, "b": 0}, {"a": 0})
    ]
    assert fingerprints[0] == fingerprints[1] and len(set(fingerprints)) == 3


def test_a_token_that_is_half_a_character_has_a_fingerprint() -> None:
    assert len(tokenizer.compute_tokenizer_fingerprint({"\ud83d": 0})) == 64


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"model": {}}', '{"model": {"vocab": 3}}', '{"model": {"vocab": {"a": null}}}',
     '{"model": {"vocab": {"a": 1e999}}}', '{"model": {"vocab": [[]]}}'],
)  # fmt: skip
def test_an_invalid_tokenizer_file_is_refused_with_a_clear_message(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match="is not a tokenizer of the tokenizers library"):
        tokenizer.load_vocabulary(tmp_path / "tokenizer.json")


def test_a_folder_without_a_tokenizer_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"There is no tokenizer.json at"):
        tokenizer.find_tokenizer_file(tmp_path)


def test_a_deeply_nested_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[" * 200_000)
    with pytest.raises(ValueError, match="is not a tokenizer"):
        tokenizer.load_vocabulary(tmp_path / "tokenizer.json")
