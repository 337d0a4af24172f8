"""Token ids are decoded with an uploaded tokenizer, which may be broken or hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollouts.indexing import detokenize
from rollouts.models import Project, Run
from tests.rollouts.support.artifacts import register_artifact, upload_files
from tests.rollouts.support.verl_batches import TOKENIZER, add_tokenizer
from tests.support import builders

TOKENIZER_FILE = TOKENIZER / "tokenizer.json"


def write_changed_tokenizer(tmp_path: Path, **parts: Any) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(TOKENIZER_FILE.read_text()), **parts}))
    return path


def test_special_tokens_are_left_out_of_texts_and_named_in_pieces() -> None:
    decoder = detokenize.load_tokenizer_file(TOKENIZER_FILE)
    assert decoder
    assert decoder.decode_rows([[1, 87, 85, 260, 201, 2, 0, 0]]) == ["user\n"]
    assert decoder.decode_each([1, 201, 2]) == ["<|im_start|>", "\n", "<|im_end|>"]


def test_ids_outside_the_vocabulary_decode_to_nothing() -> None:
    decoder = detokenize.load_tokenizer_file(TOKENIZER_FILE)
    assert decoder
    assert decoder.decode_rows([[-1, 2**40, 99_999, 16], []]) == [".", ""]
    assert decoder.decode_each([-1, 16]) == ["", "."]


def test_an_incomplete_character_is_shown_as_the_replacement_character() -> None:
    decoder = detokenize.load_tokenizer_file(TOKENIZER_FILE)
    assert decoder
    vocabulary = decoder.tokenizer.get_vocab()
    assert decoder.decode_rows([[vocabulary["æ"]]]) == ["\ufffd"]


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"model": {"type": "BPE"}}', "[" * 100_000, '{"version": "1.0", "model": 3}', "\0"],
)
def test_a_file_that_is_no_tokenizer_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    assert detokenize.load_tokenizer_file(path) is None


def test_a_decoder_with_a_broken_pattern_is_ignored(tmp_path: Path) -> None:
    pattern = {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}
    assert detokenize.load_tokenizer_file(write_changed_tokenizer(tmp_path, decoder=pattern)) is None


GROWING_DECODER = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Sequence", "decoders": [GROWING_DECODER] * 3}]},
        {"type": "Sequence", "decoders": [{"type": "BPEDecoder", "suffix": ""}] * 40},
    ],
)
def test_a_decoder_that_may_need_unlimited_time_or_memory_is_ignored(tmp_path: Path, decoder: Any) -> None:
    assert detokenize.load_tokenizer_file(write_changed_tokenizer(tmp_path, decoder=decoder)) is None


def test_a_usual_sequence_of_decoders_is_accepted(tmp_path: Path) -> None:
    usual = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    assert detokenize.load_tokenizer_file(
        write_changed_tokenizer(tmp_path, decoder={"type": "Sequence", "decoders": [*usual, strip]})
    )


def test_a_vocabulary_with_a_very_long_token_is_ignored(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0, "b" * 5000: 1}, "unk_token": "a"}
    assert detokenize.load_tokenizer_file(write_changed_tokenizer(tmp_path, model=model, added_tokens=[])) is None


def test_a_tokenizer_file_that_is_too_large_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(detokenize.MAX_TOKENIZER_FILE_BYTES + 1)
    assert detokenize.load_tokenizer_file(path) is None


@pytest.mark.django_db
def test_the_newest_readable_tokenizer_of_a_run_is_used(project: Project) -> None:
    run, other = builders.run(project), builders.run(project, "other")
    assert detokenize.load_tokenizer(run) is None
    add_tokenizer(run)
    add_broken_tokenizer(run)
    assert detokenize.load_tokenizer(run) is not None
    assert detokenize.load_tokenizer(other) is None


def add_broken_tokenizer(run: Run) -> None:
    """Adds a tokenizer file that is JSON but no tokenizer."""
    from rollouts.pins import artifact_check

    files = {"tokenizer.json": b'{"vocab": 1}'}
    artifact_check.check_artifact(upload_files(register_artifact(run, 0, files, role="tokenizer"), files).pk)


@pytest.mark.django_db
def test_the_command_that_imports_a_tokenizer_quotes_the_name_of_the_run(project: Project) -> None:
    run = builders.run(project, "it's; rm -rf ~")
    command = detokenize.build_tokenizer_command(run)
    assert command == """rolloutdeck import --tokenizer PATH --project math --run 'it'"'"'s; rm -rf ~'"""
    add_tokenizer(run)
    assert detokenize.build_tokenizer_command(run) == ""
