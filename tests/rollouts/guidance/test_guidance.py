"""Rules are versioned, and select the prompts and responses of the samples that match."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import translation

from rolloutdeck.protocol import compute_prompt_key, compute_response_key, parse_guidance
from rollouts import query
from rollouts.errors import InvalidInputError, OutdatedError, QueryLimitError
from rollouts.guidance import list_guidance, load_guidance, save_guidance, select_rows, selection
from rollouts.labels import store_labels
from rollouts.labels.answers import Answer
from rollouts.models import AuditEntry, Project, Run, Sample
from rollouts.query import TimeBudget
from rollouts.queues import create_queue
from rollouts.rescores import create_rescore
from rollouts.samples import load_texts
from tests.rollouts.flags.test_bulk import index_two_steps, list_sample_ids
from tests.rollouts.support.query_rows import push
from tests.support import builders

MASK = {"key": "bad", "query": "is:flagged", "action": "mask"}
PENALTY = {"key": "low", "query": "score<0.2", "action": "reward", "target": "response", "value": -1}


@pytest.fixture
def run(project: Project) -> Run:
    return index_two_steps(builders.run(project))


def get_prompt_key(sample: str) -> str:
    return str(Sample.objects.get(pk=sample).prompt_key)


def test_an_edit_is_the_next_version_and_the_old_one_stays(project: Project, owner: User) -> None:
    assert load_guidance(project).number == 0
    first = save_guidance(project, owner, [MASK], "", base=0)
    assert save_guidance(project, owner, [MASK], "trainer", base=1) == first, "nothing changed"
    second = save_guidance(project, owner, [MASK, PENALTY], "exclude", base=1)
    assert [version.number for version in list_guidance(project)] == [2, 1]
    assert load_guidance(project, 1).rules[0].target == "prompt"
    assert second.rules[1].value == -1.0
    assert list(AuditEntry.objects.order_by("pk").values_list("verb", "detail")) == [
        ("guidance.save", {"rules": ["bad"]}),
        ("guidance.save", {"rules": ["bad", "low"]}),
    ]
    with pytest.raises(OutdatedError):
        save_guidance(project, owner, [], "", base=1)
    assert save_guidance(project, owner, [], "", base=2).rules == ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"key": "Bad"}, "rules.1.key"),
        ({"key": "bad"}, "rules.1.key"),
        ({"query": ""}, "rules.1.query"),
        ({"query": "score>"}, "rules.1.query"),
        ({"query": "score>0 -is:seen"}, "rules.1.query"),
        ({"action": ""}, "rules.1.action"),
        ({"action": "weight", "value": 0}, "rules.1.value"),
        ({"action": "weight", "value": True}, "rules.1.value"),
        ({"action": "reward", "value": 1e300}, "rules.1.value"),
        ({"action": "reward", "value": 10**400}, "rules.1.value"),
        ({"action": "weight", "value": float("nan")}, "rules.1.value"),
        ({"action": "drop", "target": "response"}, "rules.1.target"),
        ({"target": "step"}, "rules.1.target"),
        ({"step": 1}, "rules.1.step"),
    ],
)
def test_the_error_for_an_invalid_rule_names_its_field(
    project: Project, owner: User, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInputError) as error:
        save_guidance(project, owner, [MASK, {**MASK, "key": "other", **change}], "")
    assert error.value.field == field


def test_a_rule_selects_prompts_or_responses_and_says_what_was_cut(
    run: Run, project: Project, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = save_guidance(project, owner, [MASK, PENALTY], "")
    first = list_sample_ids(run)[0]
    assert select_rows(project, version, owner).prompts == {}
    builders.flag(first, owner)
    result = select_rows(project, version, owner)
    assert result.prompts == {get_prompt_key(first): [0]}
    low = {f"{compute_prompt_key('ask 0')}/{compute_response_key(f'0 of {step}')}": [1] for step in (1, 2)}
    assert result.responses == low
    assert [(rule.selected, rule.sent, rule.is_complete) for rule in result.rules] == [(1, 1, True), (2, 2, True)]
    monkeypatch.setattr(selection, "MAX_RESPONSES", 1)
    save_guidance(project, owner, [PENALTY], "")
    (cut,) = select_rows(project, load_guidance(project), owner).rules
    assert (cut.sent, cut.is_complete) == (1, False)


def test_all_rules_share_one_time_limit(
    run: Run, project: Project, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders.run(project, "second")
    texts = [{"key": name, "query": f'"{name}"', "action": "mask"} for name in ("one", "two")]
    version = save_guidance(project, owner, texts, "")
    budgets: list[float] = []

    def find_samples(*args: Any, time_budget: TimeBudget, **kwargs: Any) -> Any:
        budgets.append(time_budget.seconds)
        return query.find_samples(*args, time_budget=time_budget, **kwargs)

    clock = count(step=4)
    monkeypatch.setattr(selection, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(selection, "find_samples", find_samples)
    select_rows(project, version, owner)
    assert budgets == [11.0, 7.0, 3.0, 0.0]


def test_a_search_that_ends_at_a_limit_is_incomplete_and_repeated_a_minute_later(
    run: Run, project: Project, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = save_guidance(project, owner, [{**MASK, "query": "score>=0"}], "")

    def find_samples(*args: Any, **kwargs: Any) -> Any:
        raise QueryLimitError("The search took 20 s.", "q")

    with monkeypatch.context() as patch:
        patch.setattr(selection, "find_samples", find_samples)
        (cut,) = select_rows(project, version, owner).rules
    assert (cut.is_complete, cut.problem, cut.selected) == (False, "", 0)
    assert select_rows(project, version, owner).rules == [cut]
    monkeypatch.setattr(selection, "CUT_SECONDS", -1.0)
    (found,) = select_rows(project, version, owner).rules
    assert found.is_complete and found.selected


def test_responses_are_read_a_few_at_a_time_and_none_after_the_deadline(
    run: Run, project: Project, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []

    def count_texts(rows: list[Sample]) -> dict[str, tuple[str, str]]:
        loaded.append(len(rows))
        return load_texts(rows)

    monkeypatch.setattr(selection, "load_texts", count_texts)
    monkeypatch.setattr(selection, "TEXTS_AT_ONCE", 1)
    version = save_guidance(project, owner, [PENALTY], "")
    assert len(select_rows(project, version, owner).responses) == 2 and loaded == [1, 1]
    monkeypatch.setattr(selection, "SEARCH_SECONDS", -10.0)
    result = select_rows(project, save_guidance(project, owner, [{**PENALTY, "query": "score<0.3"}], ""), owner)
    (cut,) = result.rules
    assert (cut.selected, cut.is_complete, cut.is_cut) == (0, False, True) and loaded == [1, 1]
    assert len(result.samples) == 2, "a replay selects them by their ids"


def test_a_query_that_a_run_cannot_answer_is_a_problem_only_if_none_can(
    run: Run, project: Project, owner: User
) -> None:
    builders.run(project, "without samples")
    rules = [{**MASK, "query": "nowhere=1"}, {**MASK, "key": "other", "query": "-nowhere=1"}]
    version = save_guidance(project, owner, rules, "")
    found = select_rows(project, version, owner).rules
    assert [(rule.selected, "nowhere" in rule.problem) for rule in found] == [(0, True)] * 2
    rule = found[0]
    with translation.override("zh-hans"):
        translated = select_rows(project, version, owner).rules[0]
    assert "nowhere" in translated.problem and translated.problem != rule.problem


def test_a_run_that_lacks_a_key_answers_the_other_terms(run: Run, project: Project, owner: User) -> None:
    older = builders.run(project, "older")
    push(older, [{"prompt": name, "response": "r", "hack": hack} for name, hack in (("hacked", 1), ("honest", 0))])
    first = list_sample_ids(run)[0]
    builders.flag(first, owner)
    rules = [{**MASK, "query": "hack=1 or is:flagged"}, {**MASK, "key": "other", "query": "-hack=1"}]
    result = select_rows(project, save_guidance(project, owner, rules, ""), owner)
    selected, others = ({key for key, own in result.prompts.items() if position in own} for position in (0, 1))
    assert selected == {get_prompt_key(first), compute_prompt_key("hacked")}
    assert others == {compute_prompt_key("honest")}, "nobody knows which samples of the other run hacked"
    assert [(rule.is_complete, rule.problem) for rule in result.rules] == [(True, ""), (False, "")]


def test_a_search_that_is_cut_selects_nothing_by_a_negated_key(
    run: Run, project: Project, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(run, [{"prompt": "honest", "response": "r", "hack": 0}], step=3)

    def find_samples(*args: Any, **kwargs: Any) -> Any:
        return replace(query.find_samples(*args, **kwargs), cursor=1)

    monkeypatch.setattr(selection, "find_samples", find_samples)
    rules = [{**MASK, "query": "-hack=1"}, {**MASK, "key": "other", "query": "hack=0"}]
    result = select_rows(project, save_guidance(project, owner, rules, ""), owner)
    assert result.prompts == {compute_prompt_key("honest"): [1]}
    assert [(rule.is_cut, rule.problem) for rule in result.rules] == [(True, "")] * 2


def test_a_run_that_lacks_a_rescore_answers_the_other_terms(run: Run, project: Project, owner: User) -> None:
    older = index_two_steps(builders.run(project, "older"))
    create_rescore(older, owner, name="score.v2", kind="function", source="f", digest="1")
    first, second = list_sample_ids(older)[0], list_sample_ids(run)[1]
    for flagged in (first, second):
        builders.flag(flagged, owner)
    terms = ("disagrees:score.v2 or is:flagged", "disagrees:score.v2 is:flagged")
    rules = [{**MASK, "key": f"rule{at}", "query": text} for at, text in enumerate(terms)]
    result = select_rows(project, save_guidance(project, owner, rules, ""), owner)
    assert result.prompts == {get_prompt_key(first): [0], get_prompt_key(second): [0]}
    assert [(rule.is_complete, rule.problem) for rule in result.rules] == [(True, "")] * 2


def test_labels_that_the_reader_may_not_read_do_not_count(run: Run, project: Project, owner: User, mate: User) -> None:
    first = list_sample_ids(run)[0]
    create_queue(project, owner, {"name": "Blind", "runs": [run], "is_blind": True})
    store_labels(run, owner, [Answer(first, "flag", "bad")])
    version = save_guidance(project, owner, [MASK], "")
    assert select_rows(project, version, mate).prompts == {}
    assert list(select_rows(project, version, owner).prompts) == [get_prompt_key(first)]


def test_a_trainer_reads_what_the_rules_select() -> None:
    data = {
        "version": 3,
        "baseline": "exclude",
        "rules": [
            {"key": "a", "action": "weight", "target": "prompt", "value": 0.5},
            {"key": "b", "action": "reward", "target": "prompt", "value": -1},
            {"key": "c", "action": "drop", "target": "prompt", "value": 1},
        ],
        "prompts": {"p": [0, 1], "q": [2]},
        "responses": {"p/r": [0]},
    }
    rules = parse_guidance(data)
    row, dropped = rules.find("p", "r"), rules.find("q", "")
    assert row is not None and dropped is not None
    assert (row.rules, row.weight, row.values, row.is_masked) == (("a", "b"), 0.5, {"b": -1.0}, False)
    assert (dropped.dropped, dropped.is_masked, rules.find("other", "r")) == (True, True, None)
    for wrong in ({**data, "prompts": {"p": [9]}}, {**data, "rules": [{}]}, {**data, "baseline": "x"}, [], None):
        with pytest.raises(ValueError):
            parse_guidance(wrong)
