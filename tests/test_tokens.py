"""A finished run of a trainer is imported with its rollout-skip steps: the tokens find the texts. Nothing mocked."""

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


def brought(product: Product, run: str, *words: object) -> str:
    """Imports into the run; its uid."""
    command = product.command("import", *map(str, words), "--project", "tokens", "--run", run)
    assert command.wait(120) == 0
    (row,) = (item for item in product.get("runs/")["results"] if item["name"] == run)
    return str(row["id"])


def with_tokens(product: Product, uid: str, count: int) -> dict[str, Any]:
    """Step 1 of the run as soon as so many of its samples have tokens."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        (step,) = product.get(f"runs/{uid}/steps/?split=train")["results"]
        waits = product.get(f"runs/{uid}/")["dumps"].keys() & {"received", "indexing"}
        if not waits and step["facets"].get("tokens", 0) == count:
            return dict(step)
        time.sleep(0.2)
    raise AssertionError(f"{step['facets']} of {step['samples']} after a minute")


def test_tokens_of_a_batch_find_the_texts_of_its_step(product: Product) -> None:
    text, batch = DATA / "verl_jsonl/v0/rollout/1.jsonl", DATA / "verl_skip/main"
    uid = brought(product, "v0", text, batch)
    assert with_tokens(product, uid, 0)["samples"] == 32
    before = {item["id"] for item in product.get(f"samples/?run={uid}&page_size=100")["results"]}
    brought(product, "v0", "--tokenizer", DATA / "tokenizer")
    assert with_tokens(product, uid, 32)["samples"] == 32
    result = product.get(f"samples/?run={uid}&page_size=100")["results"]
    assert {item["id"] for item in result} == before
    full = product.get(f"samples/{result[0]['id']}/")
    values = product.get(f"samples/{result[0]['id']}/tokens/")
    assert "".join(values["texts"]).removesuffix("<|im_end|>") == full["response"]
    assert len(values["logprobs"]) == values["total"] == len(full["response_ids"])
    assert {seen["format"] for seen in full["seen_in"]} == {"verl-jsonl", "verl-gen-batch"}


def test_tokens_of_a_v1_step_join_by_uid_without_a_tokenizer(product: Product) -> None:
    rows = [json.loads(line) for line in (DATA / "verl_jsonl/v1/rollout/1.jsonl").open()]
    uid = brought(product, "v1", DATA / "verl_jsonl/v1/rollout/1.jsonl", DATA / "verl_tq/sync")
    assert with_tokens(product, uid, 32)["samples"] == len(rows) == 32
    result = product.get(f"samples/?run={uid}&page_size=100&q=acc=1")["results"]
    assert {item["correct"] for item in product.get(f"samples/?run={uid}&q=score<0.5")["results"]} == {False}
    assert result == [] or {item["correct"] for item in result} == {True}


def test_a_shell_is_told_that_a_response_has_no_text_yet(product: Product) -> None:
    brought(product, "async", DATA / "verl_skip/async")
    command = [sys.executable, "-m", "rolloutdeck", "samples", "--project", "tokens", "--run", "async", "--text"]
    result = subprocess.run(command, env=product.environ, capture_output=True, text=True, timeout=600)
    assert "only token ids were recorded; `rolloutdeck import --tokenizer PATH` adds the text" in result.stdout
