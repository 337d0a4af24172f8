"""The curve of a query over the steps of a run."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from rollouts.charts import query_curves, step_counts
from rollouts.charts.query_curves import ChartQuery, QueryCurveResult, load_query_curve
from rollouts.errors import InvalidInputError
from rollouts.ingest import mark_superseded_steps
from rollouts.models import Project, QueryCurve, Run, Sample
from rollouts.rescores import create_rescore, save_results
from rollouts.samples import TEXT_PROPERTY_BITS, RescoreResult
from tests.rollouts.support.push import index_file, lines
from tests.support import builders


def index_step(run: Run, step: int, *, wrong: int, of: int = 4, split: str = "train") -> None:
    rows = [
        {
            "prompt": f"{n}", "response": "no idea" if n < wrong else "42", "score": float(n >= wrong), "lang": "zh",
            "data_source": ("gsm8k", "math")[n % 2],
        }
        for n in range(of)
    ]  # fmt: skip
    index_file(run, lines(*rows), step, split=split, source=f"{split}/{step}.jsonl", format="native")
    run.refresh_from_db()


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    for step, wrong in ((1, 4), (2, 2), (3, 1)):
        index_step(run, step, wrong=wrong)
    return run


def load_curve(run: Run, q: str, **fields: str) -> QueryCurveResult:
    return load_query_curve(run, ChartQuery(q, **fields), seconds=10)


def test_a_curve_has_share_count_score_and_length_of_each_step(run: Run) -> None:
    share = load_curve(run, "score<0.5")
    assert (share.steps, share.values, share.counts, share.complete) == ([1, 2, 3], [1, 0.5, 0.25], [4, 2, 1], True)
    assert load_curve(run, "score>0.5", measure="count").values == [0, 2, 3]
    assert load_curve(run, "source:math", measure="score").values == [0, 0.5, 1]
    assert load_curve(run, "score>0.5", measure="length").values == [None, 2, 2]
    assert load_curve(run, "", measure="score").values == [0, 0.5, 0.75]


def test_attempts_that_run_at_the_same_time_are_added_up(run: Run) -> None:
    for name, wrong in (("a", 1), ("b", 4)):
        builders.attempt(run, name)
        extra = {"mood": "good"} if name == "a" else {}
        rows = [{"prompt": f"{n}", "response": "x", "score": float(n >= wrong), **extra} for n in range(4)]
        index_file(run, lines(*rows), 7, attempt=name, format="native")
    run.attempts.filter(key__in="ab").update(concurrent_with=run.attempts.get(key="a"))
    mark_superseded_steps(run)
    share = load_curve(run, "score<0.5")
    assert (share.steps[-1], share.values[-1], share.counts[-1]) == (7, 5 / 8, 5)
    assert share.steps == sorted(set(share.steps)) and share.complete
    assert load_curve(run, "", measure="score").values[-1] == 3 / 8
    assert load_curve(run, "score<0.5", among="score>=0").values[-1] == 5 / 8
    mood = load_curve(run, "mood=good")  # which one of the attempts logged
    assert (mood.steps, mood.values, mood.counts) == ([7], [4 / 8], [4])
    assert load_curve(run, "score<0.5", among="mood=good").values == [1 / 4]


def test_a_share_can_refer_to_the_samples_of_another_query(run: Run) -> None:
    assert load_curve(run, "score<0.5", among="source:gsm8k").values == [1, 0.5, 0.5]
    assert load_curve(run, "score<0.5", among="source:nowhere").values == [None, None, None]


def test_texts_are_searched_and_each_step_only_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_curve(run, '"no idea"').values == [1, 0.5, 0.25]
    index_step(run, 4, wrong=3)
    counted: list[int] = []
    count = step_counts.StoredCounts.count
    monkeypatch.setattr(
        step_counts.StoredCounts, "count",
        lambda self, steps: (counted.extend(step.step for step in steps), count(self, steps))[1],
    )  # fmt: skip
    assert load_curve(run, '"no idea"').values == [1, 0.5, 0.25, 0.75]
    assert counted == [4]
    index_step(run, 2, wrong=0)
    assert load_curve(run, '"no idea"').values == [1, 0, 0.25, 0.75]
    assert counted == [4, 2]


def test_a_request_takes_limited_time_and_reports_its_progress(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_counts, "MAX_CHUNK_SAMPLES", 4)
    parts = [load_query_curve(run, ChartQuery("score<0.5"), seconds=0) for _ in range(3)]
    assert [(part.steps, part.done, part.total) for part in parts] == [([3], 1, 3), ([2, 3], 2, 3), ([1, 2, 3], 3, 3)]
    assert [part.complete for part in parts] == [False, False, True]


def test_flags_change_a_curve_without_a_new_step(run: Run, mate: User) -> None:
    assert load_curve(run, "is:flagged", measure="count").values == [0, 0, 0]
    sample = Sample.objects.filter(step__run=run, step__step=2)[0]
    builders.flag(sample.pk, mate)
    run.refresh_from_db()
    assert load_curve(run, "is:flagged", measure="count").values == [0, 1, 0]


def test_a_key_that_a_step_lacks_is_unknown_there_and_an_error_if_all_lack_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_counts, "MAX_CHUNK_BODIES", 4)
    row = {"prompt": "p", "response": "r", "score": 1.0, "extra": {"mood": "x"}, "mood": "good"}
    index_file(run, lines(row), 5, source="train/5.jsonl", format="native")
    run.refresh_from_db()
    assert (load_curve(run, "mood=good").steps, load_curve(run, "mood=good").values) == ([5], [1])
    for _time in range(2):
        with pytest.raises(InvalidInputError, match="nonsense"):
            load_curve(run, "nonsense=1")


def test_a_key_is_unknown_in_each_step_without_it_also_if_steps_are_counted_together(run: Run) -> None:
    for step, moods in ((4, "good"), (6, "bad")):
        rows = [{"prompt": f"p{n}", "response": "r", "score": 1.0, "mood": moods} for n in range(4)]
        index_file(run, lines(*rows), step, source=f"train/{step}.jsonl", format="native")
    index_step(run, 7, wrong=0)
    for q, values in (("mood=good", [1, 0]), ("-mood=good", [0, 1]), ("mood=good or score<0", [1, 0])):
        assert (load_curve(run, q).steps, load_curve(run, q).values) == ([4, 6], values), q


def test_a_key_that_was_renamed_is_drawn_by_either_name(run: Run) -> None:
    for step, key in ((4, "mood"), (6, "temper")):
        rows = [{"prompt": f"p{n}", "response": "r", "score": 1.0, key: "good" if n else "bad"} for n in range(4)]
        index_file(run, lines(*rows), step, source=f"train/{step}.jsonl", format="native")
    run.refresh_from_db()
    curve = load_curve(run, "mood=good or temper=good")
    assert (curve.steps, curve.values, curve.counts) == ([4, 6], [0.75, 0.75], [3, 3])
    assert load_curve(run, "score>0 (mood=bad or temper=bad)", measure="count").values == [1, 1]


def test_an_older_step_has_a_key_that_the_newest_ones_lack(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_counts, "MAX_CHUNK_BODIES", 4)
    row = {"prompt": "p", "response": "r", "score": 1.0, "mood": "good"}
    index_file(run, lines(row), 0, source="train/0.jsonl", format="native")
    run.refresh_from_db()
    assert (load_curve(run, "mood=good").steps, load_curve(run, "mood=good").values) == ([0], [1])


def test_scores_are_those_of_trajectories_and_lengths_those_of_texts(run: Run) -> None:
    turns = [
        {"prompt": "a", "response": "four", "score": 0.0, "trajectory": "t", "turn": 1, "group": "g"},
        {"prompt": "b", "response": "fourfour", "score": 1.0, "trajectory": "t", "turn": 2, "group": "g"},
        {"prompt": "c", "response": "no text", "score": 0.5},
    ]
    index_file(run, lines(*turns), 4, source="train/4.jsonl", format="native")
    Sample.objects.filter(tail="no text").update(chars=0, facets=TEXT_PROPERTY_BITS["no-text"])
    run.refresh_from_db()
    assert load_curve(run, "score>=0", measure="score").values[-1] == 0.75
    assert load_curve(run, "score>=0", measure="length").values[-1] == 6
    assert load_curve(run, "score>=0", measure="count").values[-1] == 3
    assert load_curve(run, "no:text", measure="length").values == [None] * 4


def test_a_rescore_that_replaces_another_one_has_a_curve_of_its_own(run: Run, owner: User) -> None:
    def save_rescore(digest: str, value: float, steps: tuple[int, ...]) -> None:
        row, _ = create_rescore(run, owner, name="score.v2", kind="function", source="f", digest=digest, replace=True)
        samples = Sample.objects.filter(step__run=run, step__step__in=steps).values_list("pk", flat=True)
        save_results(row, {sample: RescoreResult(value) for sample in samples})
        run.refresh_from_db()

    save_rescore("1", 0.0, (2, 3))
    assert load_curve(run, "score.v2<0.5", measure="count").values == [0, 4, 4]
    save_rescore("2", 0.0, (2,))
    assert load_curve(run, "score.v2<0.5", measure="count").values == [0, 4, 0]
    run.rescores.all().delete()
    with pytest.raises(InvalidInputError, match=r"score\.v2"):
        load_curve(run, "score.v2<0.5")


def test_the_split_and_the_current_steps_are_counted(run: Run) -> None:
    assert load_curve(run, "score.v2<score", split="eval").steps == [], "without steps, no re-score is missing"
    index_step(run, 3, wrong=4, split="eval")
    assert load_curve(run, "score<0.5", split="eval").values == [1]
    assert load_curve(run, "score<0.5").values == [1, 0.5, 0.25]


@pytest.mark.parametrize(
    "text",
    ["share|train||", "share|train||is:unseen", "sum|train||x", "share|test||x", "share|train||" + "x" * 600, "x"],
)
def test_an_invalid_chart_or_one_that_depends_on_the_user_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        ChartQuery.parse(text)


def test_the_text_of_a_chart_is_the_same_after_reading_it(run: Run) -> None:
    text = "share|eval|source:math|score<0.5 or /a|b/"
    assert ChartQuery.parse(text).text == text
    chart = ChartQuery("/a|b/", among="source:math or /c|d/")
    assert ChartQuery.parse(chart.text) == chart


def test_old_curves_are_deleted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_counts, "MAX_STORED", 2)
    for number in range(5):
        load_curve(run, f"score<0.{number + 1}")
    assert QueryCurve.objects.count() == 2
    assert query_curves.list_steps(run, "train")[0].step == 3
