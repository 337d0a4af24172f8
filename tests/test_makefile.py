"""`make help` lists all commands, and a file with the name of one does not hide it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_help_lists_every_command() -> None:
    text = (ROOT / "Makefile").read_text()
    described = set(re.findall(r"^([\w-]+):.*##", text, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony and set(phony[1].split()) == described
    words = ["make", "--no-print-directory", "help"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of `make test`
    listed = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=True).stdout
    assert {line.split()[0] for line in listed.splitlines()} == described
