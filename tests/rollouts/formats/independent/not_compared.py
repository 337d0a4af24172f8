"""Files next to the dumps that no reader reads, with the reason."""

from __future__ import annotations

import re
from pathlib import Path

# The end of a path, and the reason. Rolloutdeck refuses to read each of them as samples or metrics.
REASONS = [
    (r"README\.md$", "describes the dumps"),
    (r"/(example_settings|example_files)/", "settings of trainers"),
    (r"/(tokenizer|versions)/", "a tokenizer, and data folders of older versions"),
    (r"access_matrix\.json$", "what each role may do at each address"),
    (r"verl_dumps\.expected\.json$", "what torch reads in the batches of verl, for the test of the pickle reader"),
    (r"/verl_\w+/.*/meta\.json$", "the number of the step, which the folder has too"),
    (r"verl_v2/.*/train_step__gen_step\.txt$", "which call wrote which step; the batch has it too"),
    (r"verl_v2/.*/new_batch\.dp$", "the labels of the gen_batch.dp beside it, compared with it"),
    (r"verl_v2/v1_single_file/", "the one file of a run, without a step, that verl wrote for half a year"),
    (r"verl_skip/broken/.*/[145]/gen_batch\.dp$", "cut short, empty, hostile"),
    (r"trl/.*/rollouts\.pt$", "the answers that the scripted run was given"),
    (r"trl/.*/callback_calls\.json$", "which callbacks TRL called, and with which arguments"),
    (r"val_loggers/tables\.json$", "tables as verl hands them to two trackers; as files: others/folded"),
    (r"val_loggers/pr5988_val_generations\.json$", "a variable inside a trainer of one pull request"),
    (r"val_loggers/tensorboard/", "TensorBoard's events, which Rolloutdeck does not read"),
    (r"rllm/.*/batch_summary\.json$", "counts of the episodes beside it"),
    (r"nemo_gym/.*_failures\.jsonl$", "requests that failed: no answer"),
]


def find_reason(path: Path) -> str | None:
    return next((reason for pattern, reason in REASONS if re.search(pattern, str(path))), None)
