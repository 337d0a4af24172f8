"""Guidance rules in slime: `guide_rewards` masks, drops and weights samples where slime normalises their rewards.

slime computes what a sample is trained on in `RolloutManager._post_process_rewards`, and lets a function take its
place. Ours calls slime's and changes the rows that a rule selects. For GRPO and its kind the result is the advantage,
so a masked sample gets 0. Other estimators compute the advantage later, in the training processes: there a masked
sample has no token in the loss (`remove_sample`), like a dropped one.

If masked samples do not count in the baseline, slime's method normalises each group that has one again, without them.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from rolloutdeck.protocol import GuidanceRules
from rolloutdeck.trainers.common import MatchedRows, catch_errors, follows_guidance, match_rows, once_logger
from rolloutdeck.trainers.slime.plugin.rows import convert_list
from rolloutdeck.trainers.slime.plugin.session import SlimeSession, get_slime_session

STEP_KIND = "rollout_id"
PATH_ARGUMENT, OUR_PREFIX = "custom_reward_post_process_path", "rolloutdeck.trainers.slime."
CONVERT_ARGUMENT = "custom_convert_samples_to_train_data_path"
FUNCTION_SETTING = "rolloutdeck_reward_post_process_path"  # in the YAML of `--custom-config-path`
GRPO_ESTIMATORS = ("grpo", "gspo", "cispo")

Rewards = Sequence[float]


@dataclass(frozen=True)
class GuidedRollout:
    """The samples of a rollout and what applies to them."""

    session: SlimeSession
    step: int
    rules: GuidanceRules
    samples: Sequence[Any]
    matched: MatchedRows

    def has(self, samples: Sequence[Any]) -> bool:
        return len(samples) == len(self.samples) and all(map(lambda own, other: own is other, self.samples, samples))


def guide_rewards(args, samples):  # type: ignore[no-untyped-def]
    """For `--custom-reward-post-process-path`: applies the guidance rules to the rewards that slime computes.

    The function whose rewards are changed is `rolloutdeck_reward_post_process_path` in the YAML of
    `--custom-config-path`, by default slime's own. Raises any error of that function.
    """
    guided = _prepare(args, samples)
    raw_rewards, rewards = normalize_rewards(args, samples)
    changed = _apply(args, guided, rewards) if guided is not None else None
    return raw_rewards, rewards if changed is None else changed


def find_guidance(args, sample):  # type: ignore[no-untyped-def]
    """For reward functions: returns the values of the `reward` rules that select the sample, by the keys of the rules.

    {} in an evaluation. Never raises.
    """
    return _find_values(args, sample) or {}


@catch_errors
def _find_values(args: Any, sample: Any) -> dict[str, float]:
    if getattr(sample, "group_index", None) is None or not follows_guidance():  # slime groups no samples of an eval
        return {}
    (row,) = match_samples(get_slime_session(args).run.guidance().rules, [sample])
    return dict(row.values) if row else {}


@catch_errors
def start_guidance(args: Any) -> None:
    """The thread of the rules asks for them while the first rollout is generated."""
    if is_guided(args):
        get_slime_session(args).run.guidance()


def is_guided(args: Any) -> bool:
    """Returns whether the rewards of this training pass `guide_rewards`, and the rules apply to it."""
    is_ours = str(getattr(args, PATH_ARGUMENT, None) or "").startswith(OUR_PREFIX)
    if is_ours and (path := getattr(args, CONVERT_ARGUMENT, None)):
        message = "The guidance rules have no effect: slime leaves the rewards to %s."
        once_logger.log_once("slime conversion", message, path)
        return False
    return is_ours and follows_guidance()


@catch_errors
def match_rollout(args: Any, step: int, samples: Sequence[Any]) -> MatchedRows:
    """Returns what applies to the samples of a rollout, which `guide_rewards` is about to get; [] without guidance."""
    if not is_guided(args):
        return []
    session = get_slime_session(args)
    rules = session.run.guidance().rules
    matched = match_samples(rules, samples)
    session.guided = GuidedRollout(session, step, rules, samples, matched)
    return matched


def match_samples(rules: GuidanceRules, samples: Sequence[Any]) -> MatchedRows:
    prompts = [sample.prompt for sample in samples]  # the parts of an execution may have different ones in a group
    groups = [prompt if isinstance(prompt, str) else id(prompt) for prompt in prompts]
    return match_rows(rules, groups, prompts.__getitem__, lambda index: samples[index].response)


@catch_errors
def _prepare(args: Any, samples: Sequence[Any]) -> GuidedRollout | None:
    """Returns what `match_rollout` found, or finds it; None if the training follows no rules."""
    if not is_guided(args):
        return None
    session = get_slime_session(args)
    guided: GuidedRollout | None = session.guided
    session.guided = None
    if guided is None or not guided.has(samples):
        rules = session.run.guidance().rules
        guided = GuidedRollout(session, find_rollout_id(args), rules, samples, match_samples(rules, samples))
    return guided


def find_rollout_id(args: Any) -> int:
    from slime.rollout import sample_hooks

    current = getattr(sample_hooks, "_current_rollout_id", None)
    return int(current if current is not None else args.logged_rollout_id)


def normalize_rewards(args: Any, samples: Sequence[Any]) -> tuple[Rewards, Rewards]:
    """Returns the result of the function that the settings name, or of slime's own method."""
    if path := getattr(args, FUNCTION_SETTING, None):
        module, _, name = str(path).rpartition(".")
        function: Callable[..., tuple[Rewards, Rewards]] = getattr(importlib.import_module(module), name)
        return function(args, samples)
    return _normalize_like_slime(args, samples)


def _normalize_like_slime(args: Any, samples: Sequence[Any]) -> tuple[Rewards, Rewards]:
    """Calls slime's method without its manager: it reads only arguments and samples."""
    from slime.ray.rollout import RolloutManager

    manager_class = getattr(getattr(RolloutManager, "__ray_metadata__", None), "modified_class", RolloutManager)
    manager = SimpleNamespace(args=args, custom_reward_post_process_func=None)
    result: tuple[Rewards, Rewards] = manager_class._post_process_rewards(manager, samples)
    return result


@catch_errors
def _apply(args: Any, guided: GuidedRollout, rewards: Rewards) -> list[float] | None:
    """Returns the changed rewards, marks samples that have no part in the loss, and reports the rollout."""
    changed, removed = list(rewards), []
    counts = [count_tokens(sample) for sample in guided.samples]
    if any(guided.matched):
        is_advantage = rewards_are_advantages(args)
        if is_advantage and guided.rules.baseline == "exclude":
            _exclude(args, guided, changed)
        for index, row in enumerate(guided.matched):
            if row is not None and is_advantage:
                changed[index] = 0.0 if row.is_masked else changed[index] * row.weight
            if row is not None and (row.dropped or (row.is_masked and not is_advantage)):
                removed.append(guided.samples[index])
        if not is_advantage and any(row is not None and row.weight not in (0, 1) for row in guided.matched):
            message = "Rules with the action `weight` have no effect with %s: slime computes the advantages later."
            once_logger.log_once("slime weight", message, getattr(args, "advantage_estimator", None))
    for sample in removed:
        sample.remove_sample = True
    _report(guided, counts)
    return changed


def rewards_are_advantages(args: Any) -> bool:
    """Returns whether slime takes the normalised reward of a sample as the advantage of each of its tokens."""
    estimator = getattr(args, "advantage_estimator", None)
    is_reward = estimator in GRPO_ESTIMATORS or (
        estimator == "reinforce_plus_plus_baseline" and not getattr(args, "kl_coef", 0)
    )
    changed_later = ("normalize_advantages", "use_opd", "custom_advantage_function_path")
    return is_reward and not any(getattr(args, name, None) for name in changed_later)


def _exclude(args: Any, guided: GuidedRollout, rewards: list[float]) -> None:
    """Replaces the rewards of samples in a group with masked ones. One that is left alone has the advantage 0."""
    if getattr(args, FUNCTION_SETTING, None):
        message = "Masked samples count in the baseline: it is that of your own function."
        once_logger.log_once("slime baseline", message)
        return
    if not getattr(args, "rewards_normalization", False):
        return
    size = int(args.n_samples_per_prompt)
    if len(rewards) != size * int(args.rollout_batch_size):
        size = len(rewards)  # slime normalises all samples of such a rollout together
    for start in range(0, len(rewards), size):
        group = range(start, start + size)
        kept = [at for at in group if (row := guided.matched[at]) is None or not row.is_masked]
        if len(kept) in (0, size):
            continue
        own_args = copy.copy(args)
        own_args.rollout_batch_size, own_args.n_samples_per_prompt = 1, len(kept)
        own = [0.0] if len(kept) == 1 else _normalize_like_slime(own_args, [guided.samples[at] for at in kept])[1]
        for at, reward in zip(kept, own, strict=True):
            rewards[at] = float(reward)


def count_tokens(sample: Any) -> int:
    mask = convert_list(sample.loss_mask)
    return int(sample.response_length if mask is None else sum(mask))


@catch_errors
def _report(guided: GuidedRollout, counts: Sequence[int]) -> None:
    affected = [(row.rules, count) for row, count in zip(guided.matched, counts, strict=True) if row is not None]
    guided.session.tally.report(guided.session.run, guided.step, guided.rules, affected, step_kind=STEP_KIND)
