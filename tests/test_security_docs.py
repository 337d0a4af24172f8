"""The page about security names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_guarantee_names_its_tests() -> None:
    text = (ROOT / "docs/security.md").read_text()
    rows = text.partition("| guarantee | test |")[2].partition("\n\n")[0].splitlines()[2:]
    named = [re.findall(r"`(tests/[^`]+)`", row) for row in rows]
    assert len(named) >= 10 and all(named)
    assert [path for paths in named for path in paths if not (ROOT / path).is_file()] == []
