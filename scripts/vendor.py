"""Downloads the front end's libraries from npm to static/vendor/ and checks the hash of each package.

    python scripts/vendor.py            # download, check, write
    python scripts/vendor.py --check    # compare the files with sums.json

There is no build step: the files are used as published. A `.br` and a `.gz` next to each script and style are
what whitenoise sends. For a new version, change the entry in `PACKAGES` and the path in the templates.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

import brotli

VENDOR = Path(__file__).resolve().parent.parent / "static" / "vendor"
SUMS = VENDOR / "sums.json"


class Package(NamedTuple):
    name: str
    version: str
    integrity: str
    files: tuple[str, ...]


PACKAGES = (
    Package(
        "htmx.org",
        "2.0.11",
        "sha512-Thx/WtpeOQqSrqBCw/A1cwGJGg4UrVa3+sW0GmrM3p4gJgO89ecH4qtbnyzDDWFvBTqjnIMCgELTNt636dtamA==",
        ("LICENSE", "dist/htmx.min.js"),
    ),
    Package(
        "idiomorph",
        "0.8.0",
        "sha512-R47JBL+6jHDQvcnbppIUtXXcxi5h6+wuCEEZXnRhUltsgzPFKzThL5PuHppP9ypJuy+7WawcY1TsSBD/iQbMhw==",
        ("LICENSE", "dist/idiomorph.min.js"),
    ),
    Package(
        "uplot",
        "1.6.32",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        ("LICENSE", "dist/uPlot.iife.min.js", "dist/uPlot.min.css"),
    ),
    Package(
        "katex",
        "0.19.1",
        "sha512-jG8uKntjSEcm2EpQOh0XturpPuuC9r3Sq5HLHdsFdWZT27E672SF19QEi+of0/YeOy15lDgRhKvr5614uRrEfA==",
        ("LICENSE", "dist/katex.min.js", "dist/katex.min.css", "dist/contrib/auto-render.min.js", "dist/fonts/*.woff2"),
    ),
    Package(
        "diff",
        "9.0.0",
        "sha512-svtcdpS8CgJyqAjEQIXdb3OjhFVVYjzGAPO8WGCmRbrml64SPw/jJD4GoE98aR7r25A0XcgrK3F02yw9R/vhQw==",
        ("LICENSE", "dist/diff.min.js"),
    ),
    Package(
        "@fontsource-variable/inter",
        "5.3.0",
        "sha512-OupL48va4JNofb97w6NYeF9S7W/kHNKM0Er8Dem5nqi4jeOLrVJDoE8tZEpnMJmtkvNbB1EIPPwHcdkF6b1oUA==",
        ("LICENSE", "files/inter-latin-wght-normal.woff2"),
    ),
    Package(
        "@fontsource-variable/jetbrains-mono",
        "5.3.0",
        "sha512-F32xpS2NsGYoQi2ADSkKTgpJj7ozajsGgDJ8woTnqjmIB+dxDIqImjl4pXZVEExu8UFZ2ndhmX18EBS/hdz3Lw==",
        ("LICENSE", "files/jetbrains-mono-latin-wght-normal.woff2"),
    ),
)


def download_package(package: Package, folder: Path) -> Path:
    """Downloads the package's archive to `folder` and returns its path. Exits if the hash differs from `integrity`."""
    command = ["npm", "pack", f"{package.name}@{package.version}", "--silent", "--pack-destination", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    archive = folder / f"{package.name.lstrip('@').replace('/', '-')}-{package.version}.tgz"
    actual = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if actual != package.integrity:
        sys.exit(f"{archive.name} has the hash {actual}, which differs from scripts/vendor.py. No file was written.")
    return archive


def unpack(package: Package, archive: Path) -> None:
    """Writes the listed files below static/vendor/name@version/, without their first folder."""
    target = VENDOR / f"{package.name.rsplit('/', 1)[-1]}@{package.version}"
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            inner = member.name.partition("/")[2]
            content = tar.extractfile(member) if member.isfile() else None
            if content and any(Path(inner).match(pattern) for pattern in package.files):
                write_file(target / inner.removeprefix("dist/").removeprefix("files/"), content.read())


def write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if path.suffix in {".js", ".css"}:
        path.with_name(path.name + ".br").write_bytes(brotli.compress(content))
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content, 9, mtime=0))


def compute_sums() -> dict[str, str]:
    """Returns {path below static/vendor: sha256} for all files."""
    files = sorted(path for path in VENDOR.rglob("*") if path.is_file() and path != SUMS)
    return {str(path.relative_to(VENDOR)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check() -> int:
    written = json.loads(SUMS.read_text())
    current = compute_sums()
    changed = sorted(name for name in written.keys() | current.keys() if written.get(name) != current.get(name))
    for name in changed:
        print(f"static/vendor/{name} differs from sums.json. Run python scripts/vendor.py.")
    return 1 if changed else 0


def main() -> int:
    if "--check" in sys.argv:
        return check()
    with tempfile.TemporaryDirectory() as folder:
        archives = [download_package(package, Path(folder)) for package in PACKAGES]  # before any file is written
        for package, archive in zip(PACKAGES, archives, strict=True):
            unpack(package, archive)
            print(f"{package.name}@{package.version}")
    SUMS.write_text(json.dumps(compute_sums(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
