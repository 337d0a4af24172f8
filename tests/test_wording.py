"""Code, pages and docs use standard terms, and each name has one meaning."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("rolloutdeck", "rollouts", "workers", "dashboard", "scripts", "examples", "templates", "static", "docs")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
# Stored names do not change, other people's files keep their words, and the glossary lists old names.
STORED = re.compile(r"/migrations/|static/vendor/|bench/workload\.py|docs/glossary\.md")
TEST_NAME = re.compile(r"`test_\w+`")  # docs name the tests of a pitfall
# Word of an earlier vocabulary -> what to write. They are words of no API, database or file format.
OLD_WORDS = {
    "told": "reported",
    "untold": "unknown",
    "anew": "again",
    "stitch": "concatenate attempts",
    "doorbell": "change notification",
    "shelf": "artifact upload queue",
    "courier": "dispatcher",
    "errand": "upload request",
    "doubts": "warnings",
    "aloud": "print, log",
    "standins": "placeholders",
    "whoever": "the user",
    "somebody": "the user",
    "beside": "next to",
    "settle": "reconcile",
    "unfit": "incompatible",
    "gatherer": "collector",
    "horizon": "cursor",
    "patience": "time budget",
    "voice": "log",
    "slim": "index row",
    "torn": "truncated",
}


def product_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *PRODUCT, *PAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.splitlines() if not STORED.search(name)]
    return [ROOT / name for name in names if Path(name).suffix in (".py", ".js", ".css", ".html", ".md", ".po")]


@cache
def product_modules() -> list[tuple[str, ast.Module]]:
    files = [path for path in product_files() if path.suffix == ".py"]
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())) for path in files]


@pytest.mark.parametrize("word", OLD_WORDS)
def test_old_words_are_not_used(word: str) -> None:
    """Also as a part of a name: `is_told`."""
    pattern = re.compile(rf"(?<![A-Za-z]){word}(?![A-Za-z])", re.IGNORECASE)
    lines = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in product_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(TEST_NAME.sub("", line))
    ]
    assert lines == [], f"Write: {OLD_WORDS[word]}."


def test_limits_are_named_max_and_min() -> None:
    names = {
        f"{file}: {node.id}"
        for file, module in product_modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Name) and re.match(r"_?(MOST|LEAST|LONGEST|FEWEST)_", node.id)
    }
    assert names == set()


def test_factories_are_not_called_of() -> None:
    names = [
        f"{file}:{node.lineno}"
        for file, module in product_modules()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef) and node.name == "of"
    ]
    assert names == []


def test_each_exception_ends_in_error_and_exists_once() -> None:
    """Django's and DRF's own names of exceptions are not ours."""
    bases = {"Exception", "ValueError", "RuntimeError", "OSError", "LookupError", "TypeError"}
    classes = [
        node.name
        for file, module in product_modules()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and (base.id in bases or base.id.endswith("Error")) for base in node.bases)
    ]
    assert [name for name in classes if not name.endswith("Error")] == []
    assert [name for name, count in Counter(classes).items() if count > 1] == []


def test_docs_name_files_that_exist() -> None:
    """Also `name` in `module.py`, and in docs/paths.md modules without their folder, which is the one named last."""
    missing, folder = [], ""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for name, path in re.findall(r"(?:`(\w+)` in\s)?`([^`\s]+\.(?:py|js|html|css|sh))`", page.read_text()):
            if "/" in path:
                folder = path.rpartition("/")[0]
            elif page.name == "paths.md":
                path = f"{folder}/{path}"
            known = path.split("/")[0] in (*PRODUCT, "tests") and not re.search("[<*…]", path)
            if known and not (file := ROOT / path).exists():
                missing.append(f"{page.name}: {path}")
            elif known and name and not re.search(rf"\b{name}\b", file.read_text()):
                missing.append(f"{page.name}: {name} in {path}")
    assert missing == []
