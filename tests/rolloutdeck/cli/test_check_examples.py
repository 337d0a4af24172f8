"""`check` on the example configurations of verl, TRL, slime, ROLL and CURE: no false alarm, and no traceback.

The tables below tests/data/example_settings have the settings of the examples, see scripts/example_settings.py.
"""

from __future__ import annotations

import json
import os
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
# A finding that something is not set -> what the file then doesn't contain.
ABSENT = {
    "LOST  trainer.rollout_data_dir is not set.": r"rollout_data_dir\s*[=:](?!\s*null)",
    "LOST  trainer.validation_data_dir is not set.": r"validation_data_dir\s*[=:](?!\s*null)",
    "LOST  neither --dump-details nor --save-debug-rollout-data is given.": r"^[^#]*--(dump-details|save-debug-roll)",
    "LOST  rollout_dump_dir is not set.": r"^\s*rollout_dump_dir\s*:",
    "LOST  log_completions is not set.": r"log_completions\s*=\s*True",
}
# Programs that generate nothing or write what they generate: a loss of samples would be a false alarm.
OTHER_PROGRAMS = r"sft_trainer|main_generation|main_eval|loss-type sft_loss|start_sft|start_dpo|start_distill"


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


def get_checkout(name: str) -> Path:
    """A checkout of the trainer; skips the test where there is none."""
    root = os.environ.get(name.upper())
    if not root:
        pytest.skip(f"needs {name.upper()}, a checkout of github.com/{example_settings.CHECKOUTS[name].repository}")
    return Path(root)


@pytest.mark.trainers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_file_of_a_checkout_is_checked_or_refused_in_a_sentence(name: str) -> None:
    root = get_checkout(name)
    files = example_settings.CHECKOUTS[name].list_files(root)
    checked = 0
    for path in files:
        result = example_settings.check_file(name, path)
        assert (result.status == 2) == bool(result.error) and "Traceback" not in result.error, path
        assert path.suffix != ".sh" or "is a shell script" in result.error, path
        checked += result.status != 2
    assert files and (checked or name == "slime"), "slime's settings are only in shell scripts"


@pytest.mark.trainers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_is_found_in_a_checkout_is_true_of_its_files(name: str) -> None:
    root = get_checkout(name)
    table = example_settings.extract_checkout(name, root)
    for example in table["examples"]:
        findings = [table["findings"][number] for number in example["findings"]]
        lost = [finding for finding in findings if finding.startswith("LOST")]
        for path in example["paths"]:
            text = Path(root, path).read_text()
            wrong = [finding for finding in lost if re.search(ABSENT.get(finding, r"\Zx"), text, re.M)]
            assert wrong == [] and not (lost and re.search(OTHER_PROGRAMS, text)), path
    known = load_table(name)
    if table["commit"] == known["commit"]:
        assert json.loads(example_settings.format_table(table)) == known


@pytest.mark.trainers
def test_the_extraction_writes_a_table_for_each_checkout(tmp_path: Path) -> None:
    root = get_checkout("cure")
    environ = {name: value for name, value in os.environ.items() if name.lower() not in CONFIGURATIONS}
    command = [sys.executable, "-m", "scripts.example_settings", str(tmp_path)]
    done = subprocess.run(command, env={**environ, "CURE": str(root)}, capture_output=True, text=True, check=True)
    assert done.stdout == "cure: 2 configurations, 5 findings\n"
    assert [file.name for file in tmp_path.iterdir()] == ["cure.json"]
