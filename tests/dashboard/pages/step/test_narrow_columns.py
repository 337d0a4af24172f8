"""The narrow columns of the table of samples: a shortened value cannot be read as another one."""

from __future__ import annotations

import re

import pytest

from dashboard.pages.common import formatting, row_html, sample_rows
from rollouts.models import Sample
from rollouts.samples import TEXT_PROPERTY_BITS


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.00"), (-0.1, "-0.10"), (-100.0, "-100.00"), (1234.5, "1,234"), (-12345.6, "-12,346"),
        (-123456.789, "-1.2e5"), (1e20, "1.0e+20"), (-1e-12, "-1e-12"), (-1e300, "-1e300"), (-1e-300, "-1e-300"),
        (float("-inf"), "-inf"), (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_a_score_that_is_too_wide_is_rounded_and_not_cut(value: float, shown: str) -> None:
    assert formatting.format_narrow_number(value) == shown
    assert shown.replace("-", "−") in formatting.render_score(value)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("7", "7"), ("group1", "group1"), ("prompt_12", "…pt_12"), ("gsm8k/train/104", "…n/104"),
        ("c0ffee00-1234-4321-aaaa-0123456789ab", "c0ffee"), ("7k4lyjb5t7qowf5cxmzzxcnz7r", "7k4lyj"),
    ],
)  # fmt: skip
def test_a_long_name_of_a_group_shows_the_part_in_which_names_differ(name: str, shown: str) -> None:
    assert sample_rows.SampleRow(Sample(group=name)).group == shown


def test_a_row_with_many_marks_shows_its_flag_and_how_many_do_not_fit() -> None:
    names = ("repetition", "language-mix", "duplicate", "no-marker")
    facets = sum(TEXT_PROPERTY_BITS[name] for name in names)
    row = sample_rows.SampleRow(Sample(truncated=True, facets=facets, final=True), flags=2)
    shown = re.findall(r">([^<]+)</span>", row_html.render_fitting_marks(row))
    assert shown == ["⚑ 2", "TRUNC", "+4"]
    assert 'title="REP, LANG, DUP, NO ANSWER"' in row_html.render_fitting_marks(row)
    few = sample_rows.SampleRow(Sample(facets=TEXT_PROPERTY_BITS["duplicate"], final=True), flags=1)
    assert re.findall(r">([^<]+)</span>", row_html.render_fitting_marks(few)) == ["⚑", "DUP"]


def test_the_length_of_a_response_whose_text_was_not_recorded_is_not_0() -> None:
    no_text = TEXT_PROPERTY_BITS["no-text"]
    responses = (Sample(chars=0), Sample(chars=0, facets=no_text), Sample(chars=0, tokens=1200, facets=no_text))
    assert [sample_rows.SampleRow(response).length for response in responses] == ["0", "–", "1,200"]
