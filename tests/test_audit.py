"""The audit fails on vulnerabilities and secrets, and reports what it could not check."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts import audit


def test_all_packages_of_the_server_are_listed_and_none_of_development() -> None:
    packages = {name.lower() for name in audit.list_server_packages()}
    assert {"django", "celery", "redis", "kombu", "psycopg-binary", "asgiref"} <= packages
    assert not packages & {"pytest", "mypy", "rolloutdeck", "torch"}


# The last lines of pip-audit on a machine without network, and behind a firewall.
REFUSED = "Traceback …\nrequests.exceptions.ConnectionError: refused\n"
BLOCKED = "ERROR:pip_audit._cli:Could not connect to PyPI's vulnerability feed\nERROR:pip_audit._cli:Tip: blocked\n"
REPORT = {
    "dependencies": [
        {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]},
        {"name": "b", "version": "1", "vulns": []},
        {"name": "c", "skip_reason": "not found"},
    ]
}


@pytest.mark.parametrize(
    ("stdout", "stderr", "clean", "texts"),
    [
        (
            json.dumps(REPORT),
            "Found 1 known vulnerability\n",
            False,
            ["vulnerability: a 1: CVE-1, fixed in 2", "NOT CHECKED, 1 of 3", "1 in 2 packages"],
        ),
        ("", REFUSED, True, ["NOT CHECKED, 3 packages: the service did not answer", "refused)"]),
        ("", BLOCKED, True, ["NOT CHECKED, 3 packages: the service did not answer"]),
        ("", "python: No module named pip_audit\n", False, ["NOT CHECKED, pip-audit failed: python: No module"]),
        ("", "", False, ["NOT CHECKED, pip-audit failed: no reason given"]),
    ],
)
def test_a_vulnerability_or_a_failure_fails_the_audit_and_an_outage_is_reported(
    stdout: str,
    stderr: str,
    clean: bool,
    texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def answer(*args: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", answer)
    assert audit.audit_packages({"a": "1", "b": "1", "c": "1"}) is clean
    printed = capsys.readouterr().out
    assert [text for text in texts if text not in printed] == []


def test_a_new_secret_fails_and_an_accepted_one_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)

    git("init", "-q")
    (tmp_path / "a.py").write_text('password = "correct-horse-1"\n')
    git("add", "a.py")
    audit.accept_secrets(tmp_path)
    assert audit.scan_secrets(tmp_path)
    assert str(tmp_path) not in (tmp_path / audit.BASELINE).read_text(), "it is valid in every checkout"
    (tmp_path / "b.py").write_text('x = 1\naws = "AKIA' + 'QWERTYUIOPASDFGH"\n')
    git("add", "b.py")
    assert not audit.scan_secrets(tmp_path)
    assert "secret: b.py:2: AWS Access Key" in capsys.readouterr().out
