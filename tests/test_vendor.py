"""The libraries of the pages are the files that `scripts/vendor.py` wrote, and one wrong package replaces no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import vendor


def test_the_vendored_files_are_those_of_sums_json() -> None:
    assert vendor.check() == 0


def test_a_package_with_another_hash_replaces_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(package: vendor.Package, folder: Path) -> Path:
        if package == vendor.PACKAGES[-1]:
            raise SystemExit("another hash")
        return folder

    monkeypatch.setattr(vendor, "download_package", download)
    monkeypatch.setattr(vendor, "VENDOR", tmp_path)
    monkeypatch.setattr(vendor, "unpack", lambda package, archive: pytest.fail(f"{package.name} is unpacked"))
    monkeypatch.setattr("sys.argv", ["vendor.py"])
    with pytest.raises(SystemExit, match="another hash"):
        vendor.main()
