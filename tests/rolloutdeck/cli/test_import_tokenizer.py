"""`rolloutdeck import --tokenizer` by itself, for a run whose batches are on the server already."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolloutdeck.cli.entry import main

TOKENIZER = Path(__file__).parents[2] / "data" / "tokenizer"


def test_import_without_anything_to_import_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["import", "--project", "math", "--run", "grpo", "--url", "http://127.0.0.1:9", "--token", "x"])
    assert status == 2
    assert "files or folders, or the run's tokenizer with --tokenizer" in capsys.readouterr().err


def test_a_tokenizer_alone_can_be_imported(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["import", "--tokenizer", str(TOKENIZER), "--project", "math", "--run", "grpo"]
    status = main([*words, "--url", "http://127.0.0.1:9", "--token", "x"])
    assert status != 0
    assert "127.0.0.1:9" in capsys.readouterr().err
