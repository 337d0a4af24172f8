"""Numbers as pages write them."""

from __future__ import annotations

import pytest

from dashboard.pages.common import format_signed_number


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.25, 2, "+0.25"),
        (-0.25, 2, "−0.25"),
        (0.003, 3, "+0.003"),
        (-0.004, 2, "−4.0e-03"),
        (0.0, 2, "+0.00"),
        (-5.6e-17, 2, "+0.00"),
        (1234.5, 2, "+1,234.50"),
        (3, 2, "+3.00"),
        (None, 2, ""),
    ],
)
def test_a_signed_number_is_never_rounded_to_zero(value: float | None, digits: int, text: str) -> None:
    assert format_signed_number(value, digits) == text
