"""Tokens on pages and in the API: of samples that have text, and of those that have none."""

from __future__ import annotations

import html
import shutil
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Run, Sample
from tests.rollouts.support.push import DUMPS, index_file, list_samples
from tests.rollouts.support.verl_batches import ASYNC, V0, V1, add_tokenizer, create_ready_artifact, index_waiting_dumps
from tests.support.html import collapse_spaces

pytestmark = pytest.mark.django_db

COMMAND = "rolloutdeck import --tokenizer PATH --project math --run grpo"


@pytest.fixture
def owner_client(client: Client, owner: User) -> Client:
    client.force_login(owner)
    return client


def get_json(client: Client, path: str) -> Any:
    response = client.get(f"/api/v1/{path}")
    assert response.status_code == 200, response.content
    return response.json()


def get_page(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


def create_joined_sample(run: Run) -> Sample:
    """A sample of a step that is in a JSONL file and in a batch."""
    index_file(run, (DUMPS / "v1/rollout/1.jsonl").read_bytes())
    create_ready_artifact(run, V1, role="rollout_tq")
    index_waiting_dumps(run)
    return list_samples(run)[0]


@pytest.fixture
def other_batch(tmp_path: Path) -> Path:
    """The batch of another prompt: the same files with another `meta.json`."""
    step = tmp_path / "step"
    shutil.copytree(ASYNC, step)
    (step / "meta.json").write_text('{"global_steps": 7}')
    return step


def create_sample_without_text(run: Run) -> Sample:
    """A sample that is only in a batch, so it has no text."""
    create_ready_artifact(run, ASYNC, role="async_rollout", step_kind="feed_index")
    index_waiting_dumps(run)
    return list_samples(run)[0]


def test_the_api_returns_the_tokens_of_a_batch_in_windows(run: Run, owner_client: Client) -> None:
    sample = create_joined_sample(run)
    result = get_json(owner_client, f"samples/{sample.pk}/tokens/?start=2&count=3")
    assert (result["start"], result["count"], result["total"]) == (2, 3, sample.tokens)
    assert all(len(result[name]) == 3 for name in ("response_ids", "response_mask", "logprobs"))
    assert result["texts"] is None and len(result["prompt_ids"]) > 3


def test_a_prompt_longer_than_one_answer_is_read_in_windows(
    run: Run, owner_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = create_joined_sample(run)
    full = get_json(owner_client, f"samples/{sample.pk}/tokens/")["prompt_ids"]
    monkeypatch.setattr("dashboard.api.views.samples.MAX_TOKENS", 5)
    first = get_json(owner_client, f"samples/{sample.pk}/tokens/?count=1")
    assert (first["prompt_start"], first["prompt_total"], first["prompt_ids"]) == (0, len(full), full[:5])
    second = get_json(owner_client, f"samples/{sample.pk}/tokens/?count=1&prompt_start=5")
    assert second["prompt_ids"] == full[5:10]


def test_each_token_has_its_text_where_the_tokenizer_is_known(run: Run, owner_client: Client) -> None:
    sample = create_joined_sample(run)
    add_tokenizer(run)
    result = get_json(owner_client, f"samples/{sample.pk}/tokens/")
    full = get_json(owner_client, f"samples/{sample.pk}/")
    assert len(result["texts"]) == result["total"]
    assert "".join(result["texts"]).removesuffix("<|im_end|>").startswith(full["response"][:20])


def test_the_token_view_shows_mask_log_probs_and_text(run: Run, owner_client: Client) -> None:
    sample = create_joined_sample(run)
    rendered = get_page(owner_client, f"/samples/{sample.pk}/?view=tokens&as=table")
    assert all(f">{name}</th>" in rendered for name in ("id", "log-prob", "mask")) and ">text</th>" not in rendered
    add_tokenizer(run)
    assert ">text</th>" in get_page(owner_client, f"/samples/{sample.pk}/?view=tokens&as=table")


def test_a_step_says_how_many_of_its_samples_have_tokens(run: Run, owner_client: Client) -> None:
    create_joined_sample(run)
    rendered = get_page(owner_client, f"/runs/{run.uid}/steps/1/")
    assert '<b>32</b><span class="muted">of 32</span>' in collapse_spaces(rendered)
    assert COMMAND not in rendered


def test_a_step_whose_batch_cannot_be_joined_says_what_it_needs(run: Run, owner_client: Client) -> None:
    index_file(run, (DUMPS / "v0/rollout/1.jsonl").read_bytes())
    create_ready_artifact(run, V0)
    index_waiting_dumps(run)
    rendered = get_page(owner_client, f"/runs/{run.uid}/steps/1/")
    assert '<b>0</b><span class="muted">of 32</span>' in collapse_spaces(rendered) and COMMAND in rendered


def test_a_response_without_text_says_which_command_adds_it(run: Run, owner_client: Client) -> None:
    sample = create_sample_without_text(run)
    rendered = get_page(owner_client, f"/samples/{sample.pk}/")
    assert "To show text, upload the tokenizer" in rendered and COMMAND in rendered
    assert "<span>0 chars</span>" not in rendered and 'data-view="math"' not in rendered
    full = get_json(owner_client, f"samples/{sample.pk}/")
    assert full["response"] is None and full["response_ids"] and full["messages"]
    assert full["facets"] == ["tokens", "no-text"]


def test_messages_of_a_prompt_are_followed_by_the_response_in_turns(run: Run, owner_client: Client) -> None:
    sample = create_joined_sample(run)
    rendered = get_page(owner_client, f"/samples/{sample.pk}/?view=turns")
    roles = [part.split('"')[0] for part in rendered.split('<li class="turn ')[1:]]
    assert roles == ["system", "user", "assistant"]


def test_batches_kept_by_prompt_do_not_mix_with_the_steps_of_the_trainer(
    run: Run, owner_client: Client, other_batch: Path
) -> None:
    index_file(run, (DUMPS / "v0/rollout/2.jsonl").read_bytes(), 1)
    index_file(run, (DUMPS / "v0/rollout/3.jsonl").read_bytes(), 3)
    create_ready_artifact(run, ASYNC, step=1, role="async_rollout", step_kind="feed_index")
    create_ready_artifact(run, other_batch, step=7, role="async_rollout", step_kind="feed_index")
    index_waiting_dumps(run)
    assert 'data-total="32"' in get_page(owner_client, f"/runs/{run.uid}/steps/1/")
    assert 'data-step="3"' in get_page(owner_client, f"/runs/{run.uid}/steps/latest/")
    assert 'data-total="64"' in get_page(owner_client, f"/runs/{run.uid}/steps/all/")
    assert 'data-total="4"' in get_page(owner_client, f"/runs/{run.uid}/steps/7/")
    assert "Mean score of 2 train steps" in get_page(owner_client, f"/runs/{run.uid}/")
