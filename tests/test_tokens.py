"""Imported rollout-skip steps: their tokens are joined with the texts of the run. Nothing is mocked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Product

pytestmark = pytest.mark.slow
DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with Product() as product:
        yield product


def import_run(product: Product, run: str, *words: object) -> str:
    """Imports into the run, and returns its uid."""
    command = product.command("import", *map(str, words), "--project", "tokens", "--run", run)
    assert command.wait(120) == 0
    (row,) = (item for item in product.get("runs/")["results"] if item["name"] == run)
    return str(row["id"])


def wait_for_tokens(product: Product, uid: str, count: int) -> dict[str, Any]:
    """Waits until `count` samples of step 1 have tokens, and returns the step."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        (step,) = product.get(f"runs/{uid}/steps/?split=train")["results"]
        waits = product.get(f"runs/{uid}/")["dumps"].keys() & {"received", "indexing"}
        if not waits and step["facets"].get("tokens", 0) == count:
            return dict(step)
        time.sleep(0.2)
    raise AssertionError(f"{step['facets']} of {step['samples']} after a minute")


def test_tokens_of_a_batch_are_joined_with_the_texts_of_its_step(product: Product) -> None:
    text, batch = DATA / "verl_jsonl/v0/rollout/1.jsonl", DATA / "verl_skip/main"
    uid = import_run(product, "v0", text, batch)
    assert wait_for_tokens(product, uid, 0)["samples"] == 32
    before = {item["id"] for item in product.get(f"samples/?run={uid}&page_size=100")["results"]}
    import_run(product, "v0", "--tokenizer", DATA / "tokenizer")
    assert wait_for_tokens(product, uid, 32)["samples"] == 32
    result = product.get(f"samples/?run={uid}&page_size=100")["results"]
    assert {item["id"] for item in result} == before
    full = product.get(f"samples/{result[0]['id']}/")
    values = product.get(f"samples/{result[0]['id']}/tokens/")
    assert "".join(values["texts"]).removesuffix("<|im_end|>") == full["response"]
    assert len(values["logprobs"]) == values["total"] == len(full["response_ids"])
    assert {seen["format"] for seen in full["seen_in"]} == {"verl-jsonl", "verl-gen-batch"}


def test_tokens_of_a_v1_step_are_joined_by_uid_without_a_tokenizer(product: Product) -> None:
    rows = [json.loads(line) for line in (DATA / "verl_jsonl/v1/rollout/1.jsonl").open()]
    uid = import_run(product, "v1", DATA / "verl_jsonl/v1/rollout/1.jsonl", DATA / "verl_tq/sync")
    assert wait_for_tokens(product, uid, 32)["samples"] == len(rows) == 32
    result = product.get(f"samples/?run={uid}&page_size=100&q=acc=1")["results"]
    assert {item["correct"] for item in product.get(f"samples/?run={uid}&q=score<0.5")["results"]} == {False}
    assert result == [] or {item["correct"] for item in result} == {True}


def test_the_samples_command_says_that_a_response_has_no_text_yet(product: Product) -> None:
    import_run(product, "async", DATA / "verl_skip/async")
    command = [sys.executable, "-m", "rolloutdeck", "samples", "--project", "tokens", "--run", "async", "--text"]
    result = subprocess.run(command, env=product.environ, capture_output=True, text=True, timeout=600)
    assert "only token ids were recorded; `rolloutdeck import --tokenizer PATH` adds the text" in result.stdout
