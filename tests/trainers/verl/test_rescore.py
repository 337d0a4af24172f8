"""`rolloutdeck rescore` with verl's own reward functions gives the scores that verl gives."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Product
from tests.trainers.interpreter import build_clean_environment, require_python
from tests.trainers.verl.process import ROOT

pytestmark = pytest.mark.trainers

FUNCTIONS = ("verl.utils.reward_score.gsm8k:compute_score", "verl.utils.reward_score:default_compute_score")
SCORE_WITH_VERL = """
import json, sys
from verl.utils.reward_score import default_compute_score, gsm8k

rows = [json.loads(line) for line in sys.stdin]
first = [gsm8k.compute_score(solution_str=row["output"], ground_truth=row["gts"]) for row in rows]
source = "openai/gsm8k"
second = [default_compute_score(source, row["output"], row["gts"], {}) for row in rows]
print(json.dumps([first, second]))
"""


def build_rows() -> list[dict[str, Any]]:
    """Answers as models write them to GSM8K: right, wrong, without a marker, with signs and separators."""
    rng = random.Random(8)
    endings = [
        "#### {}",
        "####{}",
        "#### ${}",
        "The answer is {}.",
        "#### {}\n#### 7",
        "#### {}.",
        "####  {} apples",
        "",
    ]
    rows = []
    for number in range(48):
        truth = rng.choice(["72", "1,250", "-3", "0.5", "10"])
        given = truth if rng.random() < 0.6 else str(rng.randint(0, 99))
        text = f"Step {number}: think.\n" + endings[number % len(endings)].format(given)
        rows.append({"input": f"q{number // 4}", "output": text, "gts": truth, "score": 0.0, "step": 1})
    return rows


def test_samples_get_the_scores_of_verls_gsm8k_function(tmp_path: Path) -> None:
    interpreter = require_python()
    rows = build_rows()
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sent = (tmp_path / "dump" / "1.jsonl").read_text(encoding="utf-8")
    scored = subprocess.run(
        [interpreter, "-c", SCORE_WITH_VERL], input=sent, capture_output=True, text=True, env=build_clean_environment()
    )
    assert scored.returncode == 0, scored.stderr[-2000:]
    expected = json.loads(scored.stdout.splitlines()[-1])
    assert 0 < sum(expected[0]) < len(rows)

    with Product() as product:
        environ = {**product.environ, "PYTHONPATH": str(ROOT)}
        words = ["--project", "math", "--run", "gsm8k"]
        done = run_command([interpreter, "-m", "rolloutdeck", "import", str(tmp_path / "dump"), *words], environ)
        for name, function in zip(("score.v2", "score.default"), FUNCTIONS, strict=True):
            more = ["--fn", function, "--name", name, "--data-source", "openai/gsm8k", "--workers", "1"]
            done = run_command([interpreter, "-m", "rolloutdeck", "rescore", *words, *more], environ)
            assert f"{name}: 48 results, 0 errors" in done.stderr
        (found,) = product.get("runs/?name=gsm8k&project=math")["results"]
        samples = product.get(f"samples/?run={found['id']}&ordering=order&page_size=100")["results"]
    assert [sample["rescores"]["score.v2"] for sample in samples] == expected[0]
    assert [sample["rescores"]["score.default"] for sample in samples] == expected[1]


def run_command(words: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done
