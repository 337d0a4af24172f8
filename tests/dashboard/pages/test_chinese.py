"""Messages of pages in Chinese about queries, tokens and actions; API errors stay in English."""

from __future__ import annotations

import html
import json
import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Project, Run, Sample
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders

CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9"}


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    index_file(run, lines(generation(group="a"), generation(response="5", score=0.0, group="a")))
    return run


def test_a_query_error_is_in_the_language_of_the_page_and_english_in_the_api(
    run: Run, client: Client, mate: User
) -> None:
    client.force_login(mate)
    page = client.get(f"/runs/{run.uid}/steps/1/?q=is:trunkated", headers=CHINESE).content.decode()
    assert "未知的值 <code>is:trunkated</code>。您是否想输入 <code>truncated</code>？" in page
    data = ApiClient.with_token(mate, "read")("GET", f"samples/?run={run.uid}&q=is:trunkated", headers=CHINESE).json()
    assert data["error"]["message"].startswith("Unknown value `is:trunkated`. Did you mean `truncated`?")


def test_an_undo_message_has_the_words_of_the_undone_action(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    headers = {**CHINESE, "Accept": "application/json"}
    samples = ",".join(Sample.objects.filter(step__run=run).values_list("pk", flat=True))
    form = {"samples": samples, "label": "bad", "reason": "truncated"}
    done = client.post(f"/runs/{run.uid}/flags/", form, headers=headers).json()["message"]
    undone = client.post(f"/runs/{run.uid}/flags/undo/", headers=headers).json()["message"]
    assert done.removeprefix("已标记：") == undone.removeprefix("已撤销：")
    assert "已截断" in done and "2 个样本" in done


def test_the_script_finds_the_log_probabilities_of_tokens_by_their_name(
    project: Project, client: Client, mate: User
) -> None:
    run = builders.run(project)
    rows = {"prompt": "2+2?", "response": "4", "response_ids": [1, 2], "logprobs": [-0.1, -0.2]}
    index_file(run, lines(rows), format="native")
    client.force_login(mate)
    sample = Sample.objects.get(step__run=run)
    page = client.get(f"/samples/{sample.pk}/?view=tokens", headers=CHINESE).content.decode()
    name = re.findall(r'data-logprob="([^"]*)"', page)[0]
    assert name != "log-prob"
    assert name in json.loads(html.unescape(re.findall(r'data-values="([^"]*)"', page)[0]))
