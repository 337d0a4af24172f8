"""Which pin a step replays for each action of a plan, compared with what verl's RolloutSkip V2 did."""

import time

import pytest

from rolloutdeck.protocol.schedule import resolve_target, resolve_targets

TARGETS = (3, 5, 6)


@pytest.mark.parametrize("action", ["cache", "repeat", "repeat_last"])
def test_a_target_replays_its_own_pin_and_every_other_step_up_to_the_last_generates(action):
    assert resolve_targets(action, TARGETS, range(1, 7)) == [(1, None), (2, None), (3, 3), (4, None), (5, 5), (6, 6)]


def test_past_the_last_target_cache_generates_repeat_goes_round_and_repeat_last_stays():
    past = range(7, 14)
    assert [target for _, target in resolve_targets("cache", TARGETS, past)] == [None] * 7
    assert [target for _, target in resolve_targets("repeat", TARGETS, past)] == [3, 5, 6, 3, 5, 6, 3]
    assert [target for _, target in resolve_targets("repeat_last", TARGETS, past)] == [6] * 7


def simulate_run(action: str, targets: tuple[int, ...], calls: int, pinned: dict[int, str]) -> tuple[list[str], int]:
    """Returns what each step trained on and the number of generated steps. Adds what targets generate to `pinned`."""
    batches, generated = [], 0
    for step in range(1, calls + 1):
        batch = pinned.get(resolve_target(action, targets, step) or 0)
        if batch is None:
            generated += 1
            batch = f"generated {step}"
            if step in targets:
                pinned[step] = batch
        batches.append(batch.removeprefix("generated "))
    return batches, generated


@pytest.mark.parametrize(
    ("action", "calls", "first", "second"),
    [
        ("cache", 4, ("1234", 4), ("1234", 2)),
        ("repeat", 6, ("121212", 2), ("121212", 0)),
        ("repeat_last", 5, ("12222", 2), ("12222", 0)),
    ],
)
def test_two_runs_with_targets_one_and_two_train_on_the_same_as_with_rollout_skip_v2(action, calls, first, second):
    """V2 with two steps, seen in its own code: what each call returned, and how many of them generated."""
    pinned: dict[int, str] = {}
    for batches, generated in (first, second):
        assert simulate_run(action, (1, 2), calls, pinned) == (list(batches), generated)


@pytest.mark.parametrize("action", ["cache", "repeat", "repeat_last"])
def test_an_empty_plan_resolves_to_none_at_every_step(action):
    assert [resolve_target(action, (), step) for step in (0, 1, 7, 10**12)] == [None] * 4


def test_a_resumed_run_gets_the_same_targets_as_an_uninterrupted_one():
    uninterrupted = resolve_targets("repeat", (2, 4), range(1, 20))
    assert [(step, resolve_target("repeat", (2, 4), step)) for step in range(11, 20)] == uninterrupted[10:]


def test_resolving_a_step_again_does_not_change_the_next_one():
    """V2 counted calls, so a validation batch in between used up a step."""
    requests = [resolve_target("repeat", (1, 2), step) for step in (1, 1, 1, 2, 2, 3)]
    assert requests == [1, 1, 1, 2, 2, 1]


def test_the_order_in_which_targets_are_given_does_not_matter():
    assert resolve_targets("repeat", (6, 3, 5), range(12)) == resolve_targets("repeat", TARGETS, range(12))


def test_a_very_large_target_is_found_quickly():
    assert resolve_target("repeat", (10**12,), 2 * 10**12) == 10**12
    assert resolve_target("repeat_last", (10**12,), 10**12 - 1) is None


def test_an_action_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="one of cache, repeat, repeat_last"):
        resolve_target("nearest", (1,), 1)


def test_many_steps_of_a_long_plan_are_resolved_quickly():
    started = time.process_time()
    assert resolve_targets("repeat", range(1, 10_001), range(1, 20_001))[-1] == (20_000, 10_000)
    assert time.process_time() - started < 1
