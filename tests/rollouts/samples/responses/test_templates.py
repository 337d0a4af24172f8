"""Responses that begin or end with the same text, except for numbers and names, have a template."""

from __future__ import annotations

from rollouts.samples.responses.templates import Template, find_templates, mask_edges

NAMES = ("Janet", "Tom", "Mina", "Ali", "Bob", "Eve")


def find_in_responses(responses: list[str], groups: list[str] | None = None) -> list[Template]:
    edges = [mask_edges(response) for response in responses]
    groups = groups or [str(at % 3) for at in range(len(responses))]
    return find_templates(*zip(*edges, strict=True), groups, [1.0, *[0.0] * (len(responses) - 1)]).templates


def test_numbers_and_names_are_masked() -> None:
    responses = [
        f"First, {name} has {10**n}.5 eggs and buys {n},000,000 more.\nWe compute {'x' * 9}{n}, and then {text * 40}"
        for n, (name, text) in enumerate(zip(NAMES, "abcdef", strict=True))
    ]
    (template,) = find_in_responses(responses)
    assert (template.kind, template.groups, template.members) == ("opening", 3, (0, 1, 2, 3, 4, 5))
    assert template.text.startswith("First, \x02 has \x01 eggs and buys \x01 more. We")
    assert template.score_mean == 1 / 6


def test_a_template_needs_five_responses_of_three_groups() -> None:
    responses = [f"The answer is one of these: {n}" for n in range(5)]
    assert find_in_responses(responses)
    assert not find_in_responses(responses[:4])
    assert not find_in_responses(responses, ["a", "a", "b", "b", "b"])


def test_a_common_ending_is_found_and_not_the_same_responses_twice() -> None:
    responses = [
        f"{word * 30} {word} so we add {n} to it. Let me check this, it must be right, since nothing is missing: # {n}"
        for n, word in enumerate("uvwxyz")
    ]
    (template,) = find_in_responses(responses)
    assert (template.kind, template.text.split()[-2:]) == ("ending", ["#", "\x01"])
    same = [f"{'The start is always the same. ' * 9} and ends with {n}" for n in range(6)]
    assert [template.kind for template in find_in_responses(same)] == ["opening"]


def test_texts_without_spaces_have_templates_and_short_texts_have_none() -> None:
    chinese = [
        f"设这个数为{n}，则我们可以得到方程式并且把它解出来，{word * 200}" for n, word in enumerate("天地玄黄宇宙")
    ]
    assert [template.kind for template in find_in_responses(chinese)] == ["opening"]
    assert (
        find_in_responses([str(n) for n in range(9)])
        == find_in_responses(["" for _ in range(9)])
        == find_in_responses([f"#### {n}" for n in range(9)])
        == []
    )


def test_a_template_has_the_same_key_everywhere() -> None:
    assert [
        find_in_responses([f"The answer is one of these: {n}" for n in range(start, start + 6)])[0].key
        for start in (0, 100)
    ] == [Template("opening", "The answer is one of these: \x01", (), 0, None).key] * 2
