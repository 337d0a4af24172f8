"""Tests, benchmark and screenshots use the Chromium that `make packages` accepts."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.chromium import PROGRAMS, find_launch_options

PACKAGES = Path(__file__).parent.parent / "scripts" / "packages.sh"


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_name_of_chromium_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", {name: f"/usr/bin/{name}"}.get)
    assert find_launch_options()["executable_path"] == f"/usr/bin/{name}"


def test_playwrights_own_chromium_is_used_if_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "executable_path" not in find_launch_options()


def test_make_packages_accepts_the_same_names_of_chromium() -> None:
    (line,) = re.findall(r"^ *need chromium .*", PACKAGES.read_text(), re.MULTILINE)
    assert tuple(re.findall(r"command -v ([\w-]+)", line)) == PROGRAMS
