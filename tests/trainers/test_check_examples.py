"""`check` on the example configurations in checkouts of verl, TRL, slime, ROLL and CURE, if there are any."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import example_settings
from tests.rolloutdeck.cli.test_check_examples import CONFIGURATIONS, load_table

pytestmark = pytest.mark.trainers

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


def get_checkout(name: str) -> Path:
    """A checkout of the trainer; skips the test where there is none."""
    root = os.environ.get(name.upper())
    if not root:
        pytest.skip(f"needs {name.upper()}, a checkout of github.com/{example_settings.CHECKOUTS[name].repository}")
    return Path(root)


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


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_findings_in_a_checkout_match_its_files(name: str) -> None:
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


def test_the_extraction_writes_a_table_for_each_checkout(tmp_path: Path) -> None:
    root = get_checkout("cure")
    environ = {name: value for name, value in os.environ.items() if name.lower() not in CONFIGURATIONS}
    command = [sys.executable, "-m", "scripts.example_settings", str(tmp_path)]
    done = subprocess.run(command, env={**environ, "CURE": str(root)}, capture_output=True, text=True, check=True)
    assert done.stdout == "cure: 2 configurations, 5 findings\n"
    assert [file.name for file in tmp_path.iterdir()] == ["cure.json"]
