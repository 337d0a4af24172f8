"""The docs: links, paths and test names exist, the trainer table is complete, and the commands work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rolloutdeck.cli.entry import build_parser, main, reorder_check_arguments
from rolloutdeck.trainer_api import registry
from rollouts.indexing.indexer import index_dump
from rollouts.models import Dump, Run, Sample
from tests.rolloutdeck.support.step_files import run_import

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "trainers.md"
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
FOLDERS = ("rolloutdeck", "rollouts", "workers", "dashboard", "templates", "static", "tests", "scripts", "examples")
# Paths that are only in the wheel, and names of metrics.
NOT_IN_REPOSITORY = re.compile(r"rolloutdeck/(_server|generated|trained|left_out/)")
MAX_LINE = 160  # of Markdown source; a row of a table may be longer
COLUMNS = "trainer metrics|train samples|eval samples|tokens|images|live|pin|replay|selected samples|guidance"
REASONS = ("not written", "no loader")  # explained above the table; every other cell has a link
LINK = re.compile(r"\[[^]]+\]\(([^)\s]+)\)")


def read_prose(path: Path) -> str:
    """A page without its code blocks, whose comments look like headings."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)


def list_anchors(path: Path) -> set[str]:
    """The anchors that GitHub makes for the headings of a page."""
    heads = re.findall(r"^#{1,6} (.+)$", read_prose(path), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def find_broken_links(path: Path) -> list[str]:
    """The links of a page to files or headings that do not exist."""
    missing = []
    for link in LINK.findall(read_prose(path)):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if "://" not in link and (not target.exists() or (anchor and anchor not in list_anchors(target))):
            missing.append(link)
    return missing


def find_paths(path: Path) -> list[str]:
    """The files and folders of this repository that a page names as code, `{a,b}` written out, `<name>` as any name."""
    waiting = re.findall(r"`([^`\s]+/[^`\s]*)`", read_prose(path))
    names = []
    while waiting:
        name = waiting.pop()
        if choice := re.search(r"\{([^{}]*)\}", name):
            waiting += [name[: choice.start()] + part + name[choice.end() :] for part in choice[1].split(",")]
        elif name.startswith(tuple(f"{folder}/" for folder in FOLDERS)) and not NOT_IN_REPOSITORY.match(name):
            names.append(re.sub(r"<[^>]*>", "*", name))
    return names


def read_trainer_table() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def list_commands(word: str, path: Path = PAGE) -> list[list[str]]:
    lines = path.read_text().splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(f"rolloutdeck {word} ")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_a_file_and_a_heading_that_exist(path: Path) -> None:
    assert find_broken_links(path) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_names_exists(path: Path) -> None:
    assert [name for name in find_paths(path) if not list(ROOT.glob(name.rstrip("/")))] == []


def test_every_package_is_in_the_architecture_page() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    folders = [
        init.parent.name for package in ("rollouts", "rolloutdeck") for init in ROOT.glob(f"{package}/*/__init__.py")
    ]
    assert [name for name in folders if f" {name}/" not in page] == []


def test_the_page_names_the_trainers_that_check_knows() -> None:
    sentence = PAGE.read_text().partition("`rolloutdeck check --trainer NAME` works for ")[2].partition(". ")[0]
    assert tuple(re.findall(r"`(\w+)`", sentence)) == registry.TRAINERS


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_line_of_a_page_is_too_long_to_review(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert [line for line in lines if len(line) > MAX_LINE and not line.startswith("|")] == []


def test_every_cell_of_the_trainer_table_has_a_link_or_a_known_reason() -> None:
    head, _, *rows = read_trainer_table()
    assert head[1:] == COLUMNS.removeprefix("trainer ").split("|")
    assert [row for row in rows if len(row) != 11 or not LINK.search(row[0])] == []
    assert [cell for row in rows for cell in row if cell not in REASONS and not LINK.search(cell)] == []
    assert [reason for reason in REASONS if f"*{reason}*" not in PAGE.read_text()] == []


def test_the_trainer_table_names_pull_and_pin_for_the_trainers_that_support_them() -> None:
    rows = {re.findall(r"\[([^]]+)\]", row[0])[0].lower(): row for row in read_trainer_table()[2:]}
    assert {name for name, row in rows.items() if "`pull`" in row[8]} == set(registry.TRAINERS)
    pinned = {trainer.name for trainer in registry.load_all_trainers() if trainer.find_steps}
    assert {name for name, row in rows.items() if row[7] not in REASONS} >= pinned


@pytest.mark.parametrize("words", list_commands("check"), ids=lambda words: words[2])
def test_a_check_command_of_the_page_succeeds(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(words) == 0


def test_the_page_has_a_check_and_an_import_command_for_each_trainer() -> None:
    assert {words[2] for words in list_commands("check")} == set(registry.TRAINERS)
    runs = {words[-1] for words in list_commands("import")}
    with_files = [row for row in read_trainer_table()[2:] if "recipe" not in row[2]]
    assert set(registry.TRAINERS) <= runs and len(runs) == len(with_files)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("words", list_commands("import"), ids=lambda words: words[-1])
def test_an_import_command_of_the_page_creates_samples(
    words: list[str], node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert run_import(*["math" if word == "examples" else word for word in words[1:]]) == 0
    for dump in Dump.objects.filter(state=Dump.State.RECEIVED).order_by("pk"):
        index_dump(dump.pk)
    assert not Dump.objects.exclude(state=Dump.State.INDEXED).exists()
    assert Run.objects.get().name == words[-1] and Sample.objects.exists()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_exists(path: Path) -> None:
    for word in ("check", "import", "watch", "pull", "plan", "samples"):
        for words in list_commands(word, path):
            build_parser().parse_args(reorder_check_arguments(words))


def test_every_test_that_the_pitfalls_page_names_exists() -> None:
    result = set(re.findall(r"`((?:tests/|test_)[\w/.]+)`", (ROOT / "docs/known-pitfalls.md").read_text()))
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    missing = [name for name in result if not ((ROOT / name).is_file() or f"\ndef {name}(" in sources)]
    assert len(result) > 50 and missing == []
