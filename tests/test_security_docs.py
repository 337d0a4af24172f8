"""The pages about security name tests, roles and scopes that exist."""

from __future__ import annotations

import re
from pathlib import Path

from dashboard.permissions import ROLE_BY_SCOPE, ROLE_RANKS

ROOT = Path(__file__).resolve().parent.parent


def test_every_guarantee_names_its_tests() -> None:
    text = (ROOT / "docs/security.md").read_text()
    rows = text.partition("| guarantee | test |")[2].partition("\n\n")[0].splitlines()[2:]
    named = [re.findall(r"`(tests/[^`]+)`", row) for row in rows]
    assert len(named) >= 10 and all(named)
    assert [path for paths in named for path in paths if not (ROOT / path).is_file()] == []


def test_the_tables_of_roles_and_scopes_are_complete() -> None:
    text = (ROOT / "docs/deployment.md").read_text().partition("## Accounts")[2].partition("\n## ")[0]
    roles = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", text, re.MULTILINE)
    assert roles == [role for role in ROLE_RANKS if role]
    scopes = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| `(\w+)` \|$", text, re.MULTILINE))
    assert scopes == ROLE_BY_SCOPE
