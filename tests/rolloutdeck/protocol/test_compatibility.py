"""Whether a pinned artifact is compatible with the run that requests it."""

import pytest

from rolloutdeck.protocol import compatibility
from rolloutdeck.protocol.compatibility import FactDifference, compare_facts

KNOWN = {
    "role": "rollout", "serialisation": "torch", "format": "verl-gen-batch", "rows": 4096, "prompts": 512,
    "samples_per_prompt": 8, "max_prompt_length": 1024, "max_response_length": 4096, "parameter_sync_step": 1,
    "tokenizer": "ab" * 32, "model": "Qwen3-8B", "dataset": "cd" * 32, "versions": {"verl": "0.9.1"},
    "rollout_correction": False,
}  # fmt: skip


def test_the_example_has_every_fact():
    assert set(KNOWN) == set(compatibility.COMPATIBILITY_FACTS)


def test_the_same_facts_have_no_differences():
    assert compare_facts(KNOWN, dict(KNOWN)) == []


@pytest.mark.parametrize("fact", compatibility.REFUSE_FACTS)
def test_a_difference_that_prevents_loading_or_changes_the_training_data_is_refused(fact):
    request_data = {**KNOWN, fact: "another"}
    assert compare_facts(KNOWN, request_data) == [FactDifference(fact, KNOWN[fact], "another", "refuse")]
    assert compatibility.is_incompatible(compare_facts(KNOWN, request_data))


@pytest.mark.parametrize("fact", ["model", "dataset", "versions"])
def test_another_model_dataset_or_version_is_a_warning(fact):
    assert compare_facts(KNOWN, {**KNOWN, fact: "another"}) == [FactDifference(fact, KNOWN[fact], "another", "warn")]


def test_rollout_correction_that_is_on_in_the_asking_run_is_a_warning_even_when_both_have_it():
    on = {**KNOWN, "rollout_correction": True}
    assert compare_facts(on, on) == [FactDifference("rollout_correction", True, True, "warn")]
    assert compare_facts(on, KNOWN) == []


@pytest.mark.parametrize("fact", compatibility.COMPATIBILITY_FACTS)
def test_a_fact_that_is_unknown_on_either_side_is_a_warning(fact):
    unknown = {name: value for name, value in KNOWN.items() if name != fact}
    assert compare_facts(unknown, KNOWN) == [FactDifference(fact, None, KNOWN[fact], "warn")]
    assert compare_facts(KNOWN, {**KNOWN, fact: None}) == [FactDifference(fact, KNOWN[fact], None, "warn")]
    assert [(item.verdict, item.unknown) for item in compare_facts(unknown, unknown)] == [("warn", True)]


def test_a_loosened_refusal_is_a_warning_that_says_so():
    result = compare_facts(KNOWN, {**KNOWN, "rows": 8, "prompts": 1}, loosened={"rows": {"note": "a test"}})
    assert [(item.fact, item.verdict, item.loosened) for item in result] == [
        ("rows", "warn", True),
        ("prompts", "refuse", False),
    ]


def test_without_any_facts_there_is_a_warning_for_each():
    assert [item.fact for item in compare_facts({}, {})] == list(compatibility.COMPATIBILITY_FACTS)
    assert not compatibility.is_incompatible(compare_facts({}, {}))
