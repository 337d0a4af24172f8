"""The seconds of steps by phase: they add up, unknown time stays `other`, and overlap is not counted twice."""

from __future__ import annotations

import numpy as np
import pytest

from rolloutdeck.trainer_api import PHASES, list_timings
from rollouts.metrics import series
from rollouts.metrics.step_times import StepTimes, bin_step_times, find_timing, load_step_times
from rollouts.models import Run
from rollouts.samples.record import MetricPoint
from tests.support import builders

pytestmark = pytest.mark.django_db


def log_timings(
    run: Run, values: dict[str, float], step: int = 1, kind: str = "global_step", attempt: str = "a"
) -> None:
    series.append_points(run, builders.attempt(run, attempt), [MetricPoint(step, dict(values), kind)])
    Run.objects.filter(pk=run.pk).update(version=step + 100 * run.attempts.count())
    run.refresh_from_db()


def load_times(run: Run) -> StepTimes:
    times = load_step_times(run)
    assert times is not None
    return times


def read_phases(times: StepTimes, row: int = 0) -> dict[str, float]:
    return {
        name: round(float(value), 6)
        for name, value in zip(PHASES, times.phases[row], strict=True)
        if not np.isnan(value)
    }


def test_unknown_time_is_other_and_not_spread(run: Run) -> None:
    log_timings(run, {"timing_s/step": 40.0, "timing_s/gen": 22.0, "timing_s/update_actor": 8.0, "timing_s/odd": 3.0})
    times = load_times(run)
    assert read_phases(times) == {"generation": 22.0, "update": 8.0, "other": 10.0}
    assert times.total.tolist() == [40.0]
    assert times.overlap.tolist() == [0.0]


def test_several_timers_of_one_phase_are_added(run: Run) -> None:
    log_timings(
        run, {"timing_s/step": 10.0, "timing_s/gen": 2.0, "timing_s/update_actor": 5.0, "timing_s/update_critic": 3.0}
    )
    assert read_phases(load_times(run)) == {"generation": 2.0, "update": 8.0}


def test_an_evaluation_after_the_step_prolongs_it(run: Run) -> None:
    log_timings(run, {"timing_s/step": 10.0, "timing_s/gen": 10.0, "timing_s/testing": 4.0})
    times = load_times(run)
    assert times.total.tolist() == [14.0]
    assert read_phases(times) == {"generation": 10.0, "evaluation": 4.0}


def test_generation_during_training_is_overlap_and_the_rest_of_it_waiting(run: Run) -> None:
    log_timings(run, {"perf/step_time": 30.0, "perf/rollout_time": 25.0, "perf/actor_train_time": 12.0})
    times = load_times(run)
    assert times.overlap.tolist() == [7.0]
    assert times.generation.tolist() == [25.0]
    assert read_phases(times) == {"update": 12.0, "waiting": 18.0}
    assert times.total.tolist() == [30.0]


def test_gen_of_the_fully_async_trainer_is_waiting(run: Run) -> None:
    """The fully async trainer logs the time that it waits for samples as `gen`."""
    values = {"timing_s/step": 20.0, "timing_s/gen": 6.0, "timing_s/update_actor": 14.0}
    log_timings(run, values, kind="policy_version")
    assert read_phases(load_times(run)) == {"waiting": 6.0, "update": 14.0}


@pytest.mark.parametrize(
    ("kind", "values", "waiting"),
    [
        ("policy_version", {"timing_s/step": 20.0, "timing_s/gen": 6.0, "timing_s/update_actor": 12.0,
         "timing_s/timing_s/param_sync": 2.0, "timing_s/save_checkpoint": 5.0}, 6.0),
        ("global_step", {"timing_s/step": 20.0, "timing_s/gen": 6.0, "timing_s/update_actor": 12.0,
         "timing_s/sync_rollout_weights": 2.0, "timing_s/save_checkpoint": 5.0}, None),
        ("global_step", {"timing/step": 20.0, "timing/wait_for_generation_buffer": 6.0, "timing/sync_weights": 2.0,
         "timing/train_critic_and_policy": 12.0, "timing/save_checkpoints": 5.0}, 6.0),
    ],
    ids=["fully async", "one step off", "SkyRL fully async"],
)  # fmt: skip
def test_a_checkpoint_after_the_step_prolongs_it_and_is_no_overlap(
    run: Run, kind: str, values: dict[str, float], waiting: float | None
) -> None:
    log_timings(run, values, kind=kind)
    times = load_times(run)
    first = {"generation": 6.0} if waiting is None else {"waiting": waiting}
    assert read_phases(times) == {**first, "update": 12.0, "weight_sync": 2.0, "checkpoint": 5.0}
    assert (times.total.tolist(), times.overlap.tolist()) == ([25.0], [0.0])


def test_a_checkpoint_within_the_step_is_a_part_of_it(run: Run) -> None:
    log_timings(run, {"timing_s/step": 20.0, "timing_s/gen": 10.0, "timing_s/save_checkpoint": 5.0})
    assert read_phases(load_times(run)) == {"generation": 10.0, "checkpoint": 5.0, "other": 5.0}


def test_a_total_of_the_step_before_is_not_used(run: Run) -> None:
    """ROLL's RLVR logs it one step later, 0 at the first step."""
    log_timings(run, {"time/step_total": 0.0, "time/step_generate": 6.0, "time/step_train": 3.0}, 0)
    log_timings(run, {"time/step_total": 9.5, "time/step_generate": 60.0, "time/step_train": 3.0}, 1)
    times = load_times(run)
    assert (times.has_total, times.total.tolist(), times.overlap.tolist()) == (False, [9.0, 63.0], [0.0, 0.0])


def test_phases_of_agents_in_roll_add_up(run: Run) -> None:
    values = {"step_rollout": 4.0, "step_ref_log_probs_values_reward": 1.0, "step_old_log_probs_values": 2.0}
    values |= {"step_adv": 0.5, "step_train": 2.5, "step_total": 10.0}
    log_timings(run, {f"time/{name}": value for name, value in values.items()})
    expected = {"generation": 4.0, "old_log_prob": 2.0, "reference": 1.0, "advantage": 0.5, "update": 2.5}
    assert read_phases(load_times(run)) == expected


def test_metrics_of_openrlhf_are_found_under_the_names_of_its_plug_in(run: Run) -> None:
    values = {"step_total": 10.0, "generation": 6.0, "make_experience": 1.0, "ppo_train": 2.0}
    log_timings(run, {f"train/timing/{name}": value for name, value in values.items()})
    assert read_phases(load_times(run)) == {"generation": 6.0, "old_log_prob": 1.0, "update": 2.0, "other": 1.0}


def test_without_a_total_a_step_is_the_sum_of_its_phases(run: Run) -> None:
    log_timings(run, {"timeperf/rollout": 3.0, "timeperf/train_step": 2.0})
    times = load_times(run)
    assert (times.has_total, times.total.tolist()) == (False, [5.0])


def test_values_that_are_no_durations_are_unknown(run: Run) -> None:
    log_timings(
        run,
        {"timing_s/step": 10.0, "timing_s/gen": float("inf"), "timing_s/reward": -1.0, "timing_s/update_actor": 4.0},
    )
    assert read_phases(load_times(run)) == {"update": 4.0, "other": 6.0}


def test_a_later_attempt_replaces_the_steps_that_it_repeats(run: Run) -> None:
    for step in (1, 2, 3):
        log_timings(run, {"timing_s/step": 10.0, "timing_s/gen": 1.0}, step)
    log_timings(run, {"timing_s/step": 99.0, "timing_s/gen": 1.0}, 3, attempt="b")
    times = load_times(run)
    assert times.steps.tolist() == [1, 2, 3]
    assert times.total.tolist() == [10.0, 10.0, 99.0]
    assert times.slowest == 2


def test_a_run_without_timings_has_no_times(run: Run) -> None:
    log_timings(run, {"loss": 1.0})
    assert load_step_times(run) is None


def test_many_steps_are_binned_by_median_and_slowest(run: Run) -> None:
    points = [
        MetricPoint(step, {"timing_s/step": 500.0 if step == 777 else 10.0 + step % 7, "timing_s/gen": 5.0})
        for step in range(5000)
    ]
    series.append_points(run, builders.attempt(run), points)
    times = load_times(run)
    bins = bin_step_times(times, 240)
    assert len(bins) == 240
    assert (bins[0].first, bins[-1].last) == (0, 4999)
    assert all(later.first == earlier.last + 1 for earlier, later in zip(bins, bins[1:], strict=False))
    outlier = next(each for each in bins if each.first <= 777 <= each.last)
    assert outlier.slowest == 777
    assert times.total[outlier.row] < 20


def test_no_metric_is_a_phase_and_a_total_of_a_trainer() -> None:
    assert {phase for names in list_timings() for phase in names.phases.values()} <= set(PHASES)
    assert all(not set(names.total) & set(names.phases) for names in list_timings())
    for names in list_timings():
        assert find_timing({*names.total, *names.phases}) is names
