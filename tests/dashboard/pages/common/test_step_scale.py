"""The x-scale that the strips of a page share."""

from __future__ import annotations

from dashboard.pages.common import StepScale, space_ticks


def build_scale(*strips: list[int]) -> StepScale:
    result = StepScale.from_steps(*strips)
    assert result
    return result


def test_a_strip_of_every_tenth_step_has_bars_of_ten_steps() -> None:
    some_steps, all_steps = list(range(10, 101, 10)), list(range(1, 101))
    shared = build_scale(some_steps, all_steps)
    gap = shared.find_gap_of(some_steps)
    boxes = [shared.box(step, step, gap) for step in some_steps]
    assert gap == 10
    for (x, width), (next_x, _) in zip(boxes, boxes[1:], strict=False):
        assert abs(x + width - next_x) < 0.01  # side by side
    assert min(x for x, _ in boxes) >= 0 and round(sum(boxes[-1]), 2) <= 100
    for step, (x, width) in zip(some_steps, boxes, strict=True):
        assert abs(x + width / 2 - shared.center(step)) < 0.01


def test_a_strip_of_two_steps_has_no_bars_of_half_the_page() -> None:
    shared = build_scale([1, 100], list(range(1, 101)))
    x, width = shared.box(1, 1, shared.find_gap_of([1, 100]))
    assert width < 12 and x >= 0


def test_the_scale_of_one_strip_is_filled_by_its_bars() -> None:
    shared = build_scale([3, 6, 9])
    assert [shared.box(step, step) for step in (3, 6, 9)] == [(0, 33.333), (33.333, 33.333), (66.667, 33.333)]
    assert StepScale.from_steps([], []) is None
    assert build_scale([5]).box(5, 5) == (0, 100)


def test_labels_that_would_touch_are_left_out() -> None:
    assert space_ticks([(1.0, 1), (3.0, 2), (7.5, 3), (13.0, 4), (14.0, 5)]) == [(1.0, 1), (7.5, 3), (14.0, 5)]
