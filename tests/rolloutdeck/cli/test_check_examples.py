"""`check` on the example configurations of verl, TRL, slime, ROLL and CURE: no false alarm, and no traceback.

The tables below tests/data/example_settings have the settings of the examples, see scripts/example_settings.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli.entry import main
from rolloutdeck.trainer_config import is_unresolved
from scripts import example_settings

# The number of configurations in each table, so that an extraction that finds fewer is noticed.
CONFIGURATIONS = {"verl": 181, "trl": 57, "slime": 46, "roll": 107, "cure": 2}
ROOT = Path(__file__).parents[3]
RAW = example_settings.FOLDER.parent / "example_files"


def load_table(name: str) -> dict[str, Any]:
    return dict(json.loads((example_settings.FOLDER / f"{name}.json").read_text()))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_example_has_the_findings_of_the_table(name: str) -> None:
    table = load_table(name)
    for example in table["examples"]:
        settings = example_settings.decode_settings(example["settings"])
        found = example_settings.check_settings(name, settings, complete=example["complete"])
        assert found == [table["findings"][number] for number in example["findings"]], example["paths"]
    assert sum(len(example["paths"]) for example in table["examples"]) == CONFIGURATIONS[name]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_loss_is_reported_that_depends_on_an_unknown_value(name: str) -> None:
    table = load_table(name)
    for example in table["examples"]:
        findings = [table["findings"][number] for number in example["findings"]]
        lost = " ".join(finding for finding in findings if finding.startswith("LOST"))
        settings = example_settings.decode_settings(example["settings"])
        unknown = [name for name, value in settings.items() if is_unresolved(value) and f"{name}=" in lost]
        assert unknown == [] and "$" not in lost, example["paths"]


def list_raw_files() -> list[Path]:
    return sorted(path for path in RAW.rglob("*") if path.is_file() and path.name != "README.md")


@pytest.mark.parametrize("path", list_raw_files(), ids=lambda path: path.relative_to(RAW).as_posix())
def test_an_example_file_has_the_findings_of_the_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """YAML and Python are read as files; the arguments of a shell script are given as a user gives them."""
    name, _, source = path.relative_to(RAW).as_posix().partition("/")
    table = load_table(name)
    (example,) = (example for example in table["examples"] if source in example["paths"])
    result = example_settings.check_file(name, path)
    if path.suffix == ".sh":
        assert result.status == 2 and "is a shell script" in result.error
        words = example_settings.find_words(path.read_text(), flags=example_settings.CHECKOUTS[name].flags)
        status = main(["check", "--trainer", name, "--", *words])
        lines = capsys.readouterr().out.splitlines()
        result = example_settings.Result(status, tuple(line for line in lines if line.startswith(("LOST", "NOTE"))))
    assert list(result.findings) == [table["findings"][number] for number in example["findings"]]
    assert result.status == any(finding.startswith("LOST") for finding in result.findings)


def test_the_arrays_of_a_script_of_slime_are_checked_as_its_page_says() -> None:
    page = (ROOT / "docs/slime.md").read_text()
    (block,) = (part for part in re.findall(r"^```bash\n(.*?)^```$", page, re.M | re.S) if "eval" in part)
    command = f'rolloutdeck() {{ {sys.executable} -m rolloutdeck "$@"; }}; {block}'
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "LOST  neither --dump-details nor --save-debug-rollout-data is given." in done.stdout
    fixed = command.replace("-- ", "-- --dump-details /data ")
    assert subprocess.run(["bash", "-c", fixed], cwd=ROOT, capture_output=True, check=False).returncode == 0
