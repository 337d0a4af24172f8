"""Which metrics of each trainer are seconds of which phase of a step, and how a run gets them.

A metric that is listed is wall time of the step, not a sum over workers, and lies in no other listed metric. So the
phases of a step add up to its seconds, and what is left is `other`. Seconds are never spread over phases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

PHASES: Final = (
    "generation", "tool", "reward", "old_log_prob", "reference", "advantage", "update", "weight_sync", "evaluation",
    "checkpoint", "waiting", "other",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TimingNames:
    """The metrics of one trainer. `total` are names of the seconds of the whole step, the best first. `phases` maps a
    metric to its phase. `outside` are phases that the total does not contain. On the step kinds `queue_kinds`, the
    generation timer measures how long the trainer waits for samples that others generate."""

    trainer: str
    total: tuple[str, ...]
    phases: Mapping[str, str]
    outside: frozenset[str] = frozenset()
    queue_kinds: frozenset[str] = frozenset()

    def list_names(self, known: Collection[str]) -> list[str]:
        """Returns those of its metrics that a run has."""
        return [name for name in (*self.total, *self.phases) if name in known]

    def count_phases(self, known: Collection[str]) -> int:
        return sum(name in known for name in self.phases)

    def has_total(self, known: Collection[str]) -> bool:
        return any(name in known for name in self.total)


def _prefix(prefix: str, **names: str) -> dict[str, str]:
    """Returns {metric: phase} from phase=names."""
    return {prefix + name: phase for phase, text in names.items() for name in text.split()}


TIMING_NAMES: Final = (
    TimingNames(
        "verl",
        ("timing_s/step", "perf/time_per_step"),
        _prefix(
            "timing_s/",
            generation="gen generate_async",
            reward="reward",
            old_log_prob="old_log_prob",
            reference="ref",
            advantage="adv values",
            update="update_critic update_actor",
            weight_sync="update_weights sync_rollout_weights param_sync switch_to_rollout switch_to_trainer",
            evaluation="testing",
            checkpoint="save_checkpoint",
            waiting="wait_for_enough_samples switch_wait",
        ),
        frozenset(("evaluation",)),
        frozenset(("policy_version",)),
    ),
    TimingNames(
        "slime",
        ("perf/step_time",),
        _prefix(
            "perf/",
            generation="rollout_time",
            old_log_prob="log_probs_time",
            reference="ref_log_probs_time",
            update="actor_train_time",
            weight_sync="update_weights_time",
            checkpoint="save_model_time",
        ),
    ),
    TimingNames(
        "roll",
        ("time/step_total",),
        _prefix(
            "time/",
            generation="step_generate step_rollout",
            reward="reward_postprocess",
            old_log_prob="old_log_probs",
            reference="ref_log_probs_values cal_ref_log_probs",
            advantage="compute_advantage",
            update="step_train",
            weight_sync="step_model_update step_stop_server",
            evaluation="val_step val",
        ),
    ),
    TimingNames(
        "nemo-rl",
        ("timing/train/total_step_time",),
        _prefix(
            "timing/train/",
            generation="generation",
            waiting="exposed_generation",
            reward="reward_calculation",
            old_log_prob="policy_and_reference_logprobs logprob_inference_prep",
            advantage="advantage_calculation",
            update="policy_training training_prep",
            weight_sync="prepare_for_generation/total weight_sync",
            evaluation="total_validation_time",
            checkpoint="checkpointing",
        ),
    ),
    TimingNames(
        "skyrl",
        ("timing/step",),
        _prefix(
            "timing/",
            generation="generate",
            old_log_prob="fwd_logprobs_values_reward",
            advantage="compute_advantages_and_returns",
            update="train_critic_and_policy",
            weight_sync="sync_weights",
            evaluation="eval",
            checkpoint="save_checkpoints save_hf_model",
        ),
        frozenset(("evaluation",)),
    ),
    TimingNames(
        "openrlhf",
        ("timing/step_total",),
        _prefix(
            "timing/",
            generation="generation",
            old_log_prob="make_experience",
            update="ppo_train",
            weight_sync="broadcast",
        ),
    ),
    TimingNames(
        "areal",
        (),
        _prefix(
            "timeperf/",
            generation="rollout",
            old_log_prob="recompute_logp",
            reference="ref_logp",
            advantage="compute_advantage critic_values",
            update="train_step critic_train_step",
            weight_sync="update_weights",
            evaluation="eval",
            checkpoint="save checkpoint_for_recover",
        ),
    ),
    TimingNames(
        "prime-rl",
        ("time/step",),
        _prefix(
            "time/",
            waiting="wait_for_batch wait_for_policy",
            update="forward_backward",
            weight_sync="broadcast_weights",
            checkpoint="save_ckpt",
        ),
    ),
    TimingNames(
        "tinker",
        ("time/total",),
        _prefix(
            "time/",
            generation="sampling sample",
            update="train train_step",
            evaluation="run_evals",
            checkpoint="save_checkpoint",
        ),
    ),
    TimingNames("trl", ("train/step_time", "step_time"), {"timing_s/gen": "generation"}),
)

# What makes a trainer send its phases: the trainer, and the lines to add.
TIMING_SWITCHES: Final = (
    ("verl", '\'trainer.logger=["console","rolloutdeck"]\''),
    ("TRL", "GRPOTrainer(..., callbacks=[RolloutdeckCallback()])"),
    ("slime", "--custom-rollout-log-function-path rolloutdeck.trainers.slime.log_rollout"),
    ("ROLL", "track_with: rolloutdeck"),
)
