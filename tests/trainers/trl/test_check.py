"""`check` says that rows are lost where real TRL writes fewer rows than it generates, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.trainer_api import load_trainer
from tests.trainers.verl.process import train

pytestmark = pytest.mark.trainers

# Arguments of GRPOConfig: all ways in which a log and a generation can follow each other, in 4 steps.
ARGUMENTS: list[dict[str, Any]] = [
    {"logging_steps": 1},
    {"logging_steps": 2},
    {"logging_steps": 0.5},
    {"logging_steps": 1, "gradient_accumulation_steps": 4},
    {"logging_steps": 1, "gradient_accumulation_steps": 4, "steps_per_generation": 1},
    {"logging_steps": 1, "gradient_accumulation_steps": 4, "steps_per_generation": 2},
    {"logging_steps": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4},
    {"logging_steps": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4},
    {"logging_steps": 2, "num_iterations": 2},
    {"logging_steps": 4, "num_iterations": 2},
    {"logging_steps": 1, "num_iterations": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 1},
    {"logging_steps": 1, "generation_batch_size": 4, "gradient_accumulation_steps": 4},
]


def test_check_reports_lost_rows_exactly_where_trl_writes_fewer_rows(tmp_path: Path) -> None:
    done = train("../../trl/inside/intervals.py", json.dumps(ARGUMENTS), folder=tmp_path)
    trl, found = load_trainer("trl"), []
    for arguments in ARGUMENTS:
        given = {"per_device_train_batch_size": 4, "max_steps": 4, "log_completions": True, **arguments}
        issues = trl.check_settings({**given, "trl_version": "1.16.0"}, complete=False)
        assert not [issue for issue in issues if issue.possible_loss]
        found.append(any(issue.lost_data for issue in issues))
    assert found == [written < generated for generated, written in done.read_output()]
    assert done.read_output()[4] == [64, 16], "4 steps of 16 rows, of which a file has the last 4"
