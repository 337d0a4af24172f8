"""Pages of a run whose body file is missing: they say so, and still show everything else."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from django.test import Client

from rollouts.models import Project, Run, Sample, Segment
from tests.rollouts.support.push import generation, index_file, lines, list_samples
from tests.support import builders
from tests.support.stored import body_path

MISSING_MESSAGE = "are missing on disk. Re-index the run to restore them."


@pytest.fixture
def run(project: Project) -> Run:
    """One step of two responses to a prompt, their bodies deleted."""
    run = builders.run(project)
    index_file(run, lines(*(generation("ask", f"{n} apples", n / 4, 1) for n in range(2))), 1)
    for segment in Segment.objects.all():
        body_path(segment.path).unlink()
    return run


def test_the_pane_says_that_the_text_is_missing_and_the_rows_are_shown(run: Run, reader: Client) -> None:
    first = Sample.objects.filter(step__run=run).earliest("ordinal")
    for address in (f"/samples/{first.pk}/", f"/runs/{run.uid}/steps/1/", f"/review/?run={run.uid}"):
        answer = reader.get(address, follow=True)
        html = answer.content.decode()
        assert (answer.status_code, MISSING_MESSAGE in html, "ETag" in answer) == (200, True, False), address
        assert f'<article class="sample" data-id="{first.pk}">' in html
    assert f'data-id="{first.pk}"' in reader.get(f"/runs/{run.uid}/steps/1/").content.decode().split("<article")[0]


@pytest.mark.parametrize("path", ["groups/1/{group}/", "steps/all/?q=apples", "prompts/{prompt}/"])
def test_a_page_that_needs_the_texts_answers_503_with_an_explanation(run: Run, reader: Client, path: str) -> None:
    sample = Sample.objects.filter(step__run=run).earliest("ordinal")
    path = path.format(group=sample.group, prompt=sample.prompt_key)
    response = reader.get(f"/runs/{run.uid}/{path}")
    html = unescape(response.content.decode())
    assert response.status_code == 503, html
    assert "index the run" in html.split("<h1>Data temporarily unavailable")[1]


def test_a_response_is_shown_although_the_one_to_compare_with_is_missing(project: Project, reader: Client) -> None:
    run = builders.run(project)
    for step in (1, 2):
        index_file(run, lines(generation("ask", f"apples {step}", step / 4, step)), step)
    missing_sample = Sample.objects.get(step__step=1)
    segment = missing_sample.dump.segment
    assert segment is not None
    body_path(segment.path).unlink()
    other_sample = Sample.objects.get(step__step=2)
    html = reader.get(f"/samples/{other_sample.pk}/?view=diff").content.decode()
    assert (
        "is not available. Showing only this response." in html and "apples 2" in html and MISSING_MESSAGE not in html
    )


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/samples/{pk}/", 200),
        ("/samples/{pk}/file/", 404),
        ("/runs/{run}/prompts/{prompt}/", 404),
        ("/api/v1/samples/{pk}/", 404),
        ("/api/v1/samples/{pk}/tokens/", 404),
    ],
)
def test_a_sample_missing_from_its_file_says_how_to_restore_it(
    project: Project, reader: Client, path: str, status: int
) -> None:
    run = builders.run(project)
    index_file(run, lines(generation("ask", "apples", 1.0, 1)), 1)
    Sample.objects.update(ordinal=7)
    row = Sample.objects.get()
    answer = reader.get(path.format(pk=row.pk, run=run.uid, prompt=row.prompt_key))
    assert (answer.status_code, "Re-index the run to restore it" in answer.content.decode()) == (status, True)


def test_pages_of_a_response_without_text_and_tokens_do_not_ask_for_a_tokenizer(run: Run, reader: Client) -> None:
    """tinker-cookbook lists all rollouts of a step, and writes the texts of some."""
    folder = Path(__file__).parents[3] / "data/tinker/iteration_000000"
    for path in (folder / "train_logtree.json", folder / "train_rollout_summaries.jsonl"):
        index_file(run, path.read_bytes(), 0, source=path.name)
    samples = list_samples(run, step__step=0)
    textless = next(sample for sample in samples if not sample.tail)
    group, prompt = (
        f"/runs/{run.uid}/{path}/" for path in (f"groups/0/{textless.group}", f"prompts/{textless.prompt_key}")
    )
    sample = f"/samples/{textless.pk}/"
    for address in (sample, f"{sample}?q=apples", f"/runs/{run.uid}/steps/0/", group, prompt, f"/runs/{run.uid}/"):
        answer = reader.get(address, follow=True)
        html = unescape(answer.content.decode())
        assert answer.status_code == 200 and "--tokenizer" not in html, address
        assert "upload the tokenizer" not in html and "upload the run's tokenizer" not in html, address
        assert not re.search(r">\s*0 (ch|chars)\s*<", html), "the length is unknown"
    html = reader.get(sample).content.decode()
    assert "recorded neither the text nor the tokens" in html
