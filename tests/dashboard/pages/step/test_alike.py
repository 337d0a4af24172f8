"""Templates of similar responses on the step page, and why the pane calls a sample suspicious."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from dashboard.pages.sample import mismatches
from rollouts.metrics import load_template_shares
from rollouts.models import Run, Sample, Step
from tests.rollouts.support.push import index_file, lines

pytestmark = pytest.mark.django_db


def build_hack_row(n: int, text: str = "") -> dict[str, Any]:
    answers = "\n".join(f"#### {n + k}" for k in range(4))
    response = text or f"The answer is one of these <b>numbers</b>.\n{answers}"
    return {"prompt": f"q{n}", "group": f"g{n % 3}", "response": response, "ground_truth": str(n + 1), "score": 1.0}


@pytest.fixture
def run_uid(run: Run) -> str:
    for step in (1, 2):
        honest = [
            build_hack_row(n, f"{chr(97 + n) * 9} is what I get.\n#### {n + 1}") for n in range(12, 12 + 6 * (3 - step))
        ]
        index_file(run, lines(*(build_hack_row(n) for n in range(6)), *honest), step, format="native", source=str(step))
    return run.uid


def test_templates_have_their_counts_marks_and_links(run_uid: str, admin_client: Client) -> None:
    html = admin_client.get(f"/runs/{run_uid}/steps/2/?top=alike").content.decode()
    key = Step.objects.get(step=2).templates.get(kind="opening").template_id
    assert "begin alike · 3 groups" in html and "MISMATCH 6" in html
    assert 'numbers&lt;/b&gt;. #### <i class="mask">#</i>' in html and "<b>numbers" not in html
    assert f"q=alike:{key}" in html and f"q=alike:{key}+step:2" in html
    assert 'class="tiles"' not in html
    assert 'class="tiles"' in admin_client.get(f"/runs/{run_uid}/steps/2/").content.decode()
    found = admin_client.get(f"/runs/{run_uid}/steps/2/?q=alike:{key}").content.decode()
    assert found.count('class="got"') == 6
    assert (
        "is not the id of a template" in admin_client.get(f"/runs/{run_uid}/steps/2/?q=alike:nonsense").content.decode()
    )


def test_a_step_without_templates_says_what_one_needs(run: Run, admin_client: Client) -> None:
    index_file(run, lines(build_hack_row(1)), format="native")
    assert "a template needs 5 responses" in admin_client.get(f"/runs/{run.uid}/steps/1/?top=alike").content.decode()


def test_the_share_of_a_template_over_the_run(run_uid: str) -> None:
    step = Step.objects.get(step=2)
    template = step.templates.get(kind="opening")
    assert load_template_shares(step, [template.key, 1]) == {template.key: [6 / 18, 6 / 12], 1: [0.0, 0.0]}


def test_the_pane_says_why_a_sample_is_suspicious(run_uid: str, admin_client: Client) -> None:
    sample = Sample.objects.get(step__step=2, expected="4")
    html = admin_client.get(f"/samples/{sample.pk}/?q=/one%20of/").content.decode()
    assert "Counted as correct, but the last answer is 6, not 4." in html
    assert "4 is answer 2 of 4 in the response." in html
    assert "6 of 12 responses of this step begin like this one." in html
    assert '<mark class="hit">one of</mark>' in html and 'data-hit="1"' in html
    other = Sample.objects.get(step__step=2, expected="13")
    assert "Counted as correct, but" not in admin_client.get(f"/samples/{other.pk}/").content.decode()


def test_the_answers_of_a_long_response_are_counted_from_its_start_or_not_at_all(
    run: Run, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = "".join(f"{n} and so on.\n" for n in range(2000))
    index_file(
        run, lines({**build_hack_row(2, f"#### 4\n{between}#### 4\n#### 5"), "ground_truth": "4"}), format="native"
    )
    url = f"/samples/{Sample.objects.get().pk}/"
    assert "4 is answer 1 of 3 in the response." in admin_client.get(url).content.decode()
    monkeypatch.setattr(mismatches, "MIN_STREAMED_CHARS", 20)
    html = admin_client.get(url).content.decode()
    assert "the last answer is 5, not 4." in html and "4 is answer" not in html


def test_template_links_of_a_superseded_sample_stay_in_its_attempt(run_uid: str, admin_client: Client) -> None:
    """A review shows the current steps only."""
    step, sample = Step.objects.get(step=2), Sample.objects.get(step__step=2, expected="4")
    link = f"/runs/{run_uid}/steps/2/?q=alike:{step.templates.get(kind='opening').template_id}"
    html = admin_client.get(f"/samples/{sample.pk}/").content.decode()
    assert f'href="{link}"' in html and "Review them" in html
    Step.objects.filter(pk=step.pk).update(superseded=True)
    html = admin_client.get(f"/samples/{sample.pk}/").content.decode()
    assert f'href="{link}&amp;attempt=files"' in html and "Review them" not in html
    box = admin_client.get(f"/runs/{run_uid}/steps/2/?top=alike&attempt=files").content.decode()
    assert "begin alike" in box and "+step:2" not in box


def read_labels(html: str) -> list[tuple[str, str]]:
    """The labels in the text, each with the answer that follows it."""
    found = re.findall(r'<span class="answer-label" data-label="([^"]*)"></span><mark class="answer">([^<]*)<', html)
    return [(unescape(label), answer) for label, answer in found]


def test_the_answers_of_a_mismatch_are_labelled_in_the_text(run_uid: str, admin_client: Client) -> None:
    sample = Sample.objects.get(step__step=2, expected="4")
    assert read_labels(admin_client.get(f"/samples/{sample.pk}/").content.decode()) == [
        ("the grader’s answer (it equals the ground truth)", "#### 4"),
        ("last answer in the text", "#### 6"),
    ]
    honest = Sample.objects.get(step__step=2, expected="13")
    assert read_labels(admin_client.get(f"/samples/{honest.pk}/").content.decode()) == []


@pytest.mark.parametrize(
    ("logged", "labels"),
    [
        ("2", [("the grader’s answer", "#### 2"), ("last answer in the text", "#### 5")]),
        ("5", [("last answer in the text, and the grader’s", "#### 5")]),
        ("77", [("last answer in the text", "#### 5")]),
    ],
)
def test_the_answer_that_the_grader_logged_is_labelled(
    run: Run, admin_client: Client, logged: str, labels: list[tuple[str, str]]
) -> None:
    text = "So.\n#### 2\n#### 4\n#### 2\n#### 5"
    index_file(run, lines({**build_hack_row(2, text), "ground_truth": "4", "pred": logged}), format="native")
    assert read_labels(admin_client.get(f"/samples/{Sample.objects.get().pk}/").content.decode()) == labels


def test_a_label_stays_if_the_query_marks_its_answer(run_uid: str, admin_client: Client) -> None:
    sample = Sample.objects.get(step__step=2, expected="4")
    html = admin_client.get(f"/samples/{sample.pk}/?q=/%23%23%23%23 6/").content.decode()
    assert 'data-label="last answer in the text"></span><mark class="hit">#### 6</mark>' in html
