"""The batch shape and the facts of a run of verl, computed from its settings.

Source: verl 0.9.1 (`trainer/config/`, `trainer/ppo/v1/trainer_base.py`, `utils/skip/rollout_skip.py`,
`experimental/fully_async_policy/`) and 0.8.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolloutdeck.errors import UsageError
from rolloutdeck.trainer_api import TrainerSettings
from rolloutdeck.trainers.common import drop_none
from rolloutdeck.trainers.verl.settings_check import RAY_ENV_PREFIX, SKIP_ROLE_BY_TRAINER, detect_verl_trainer

EXPERIMENT, PROJECT = "trainer.experiment_name", "trainer.project_name"
SAMPLES_PER_PROMPT = "actor_rollout_ref.rollout.n"
PROMPT, RESPONSE = "data.max_prompt_length", "data.max_response_length"
BATCH, GEN_BATCH = "data.train_batch_size", "data.gen_batch_size"
MODE, FILTER = "trainer.v1.trainer_mode", "algorithm.filter_groups.enable"
REFILL = "trainer.v1.sampler.sync_refill_failed_groups"
SINGLE_FILE_SKIP_SETTING = "actor_rollout_ref.rollout.skip_rollout"
VERL_08_FILE = "new_batch.dp"  # only verl 0.8 writes it
VERL_08_SKIP_PREFIX = "actor_rollout_ref.rollout.skip."
CORRECTION = "algorithm.rollout_correction."
BYPASS, LOGPROBS = f"{CORRECTION}bypass_mode", "actor_rollout_ref.rollout.calculate_log_probs"
SERIALISATION = f"{RAY_ENV_PREFIX.lstrip('+')}VERL_DATAPROTO_SERIALIZATION_METHOD"


def build_setting_facts(settings: TrainerSettings, trainer: str = "") -> dict[str, Any]:
    """Returns the facts of `compatibility` that the settings show. Unknown facts are omitted."""
    trainer = trainer or detect_verl_trainer(settings, complete=False)
    shape = build_batch_shape(settings, trainer)
    greedy = 1 if trainer == "V0" and str(settings.get("algorithm.adv_estimator", "")).lower() == "remax" else 0
    facts: dict[str, Any] = {
        "role": SKIP_ROLE_BY_TRAINER[trainer],
        "format": "tq_batch" if trainer == "V1" else "gen_batch",
        "serialisation": "numpy" if trainer != "V1" and settings.get(SERIALISATION) == "numpy" else "torch",
        "rows": shape["prompts"] * (shape["n"] + greedy),
        "prompts": shape["prompts"],
        "samples_per_prompt": shape["n"],
        "max_prompt_length": shape["prompt"],
        "max_response_length": shape["response"],
        "parameter_sync_step": shape["inner"],
        "model": settings.get("actor_rollout_ref.model.path"),
        "rollout_correction": _has_rollout_correction(settings),
    }
    return drop_none(facts)


def build_batch_shape(settings: TrainerSettings, trainer: str) -> dict[str, int]:
    """Returns `gbs n prompt response` as in the folder's name, `prompts` per batch, `inner` and `stride`.

    See `VerlRequirements`. Raises UsageError if a setting is missing.
    """
    sizes = [SAMPLES_PER_PROMPT, PROMPT, RESPONSE, *([] if trainer == "fully async" else [BATCH])]
    if missing := [name for name in (*sizes, EXPERIMENT, PROJECT) if settings.get(name) is None]:
        raise UsageError(f"The run's config has no {', '.join(missing)}; give them with --set NAME=VALUE.")
    shape = {
        "n": require_number(settings, SAMPLES_PER_PROMPT),
        "prompt": require_number(settings, PROMPT),
        "response": require_number(settings, RESPONSE),
    }
    if trainer == "fully async":
        return {**shape, "gbs": 1, "prompts": 1, "inner": 1, "stride": _compute_stride(settings)}
    batch = require_number(settings, BATCH)
    gbs = parse_optional_number(settings, GEN_BATCH) or batch
    if trainer != "V1":
        return {**shape, "gbs": gbs, "prompts": gbs, "inner": 1, "stride": 1}
    mode = get_trainer_mode(settings)
    default = 4 if mode == "separate_async" else 1
    inner = parse_optional_number(settings, f"trainer.v1.{mode}.parameter_sync_step") or default
    if mode != "sync" or settings.get(FILTER) is True or settings.get(REFILL) is True:
        gbs = 1  # V1 sets it before it names the folder if it refills by single prompts
    return {**shape, "gbs": gbs, "prompts": batch, "inner": inner, "stride": 1}


def is_verl_08(settings: TrainerSettings) -> bool:
    """Whether these are settings of verl 0.8, whose rollout skip has another place than in later versions."""
    has_08_settings = any(name.startswith(VERL_08_SKIP_PREFIX) for name in settings)
    return has_08_settings and not any(name.startswith("skip.") for name in settings)


def get_trainer_mode(settings: TrainerSettings) -> str:
    return str(settings.get(MODE) or "sync")


def _compute_stride(settings: TrainerSettings) -> int:
    batches = parse_optional_number(settings, "async_training.require_batches") or 1
    return (parse_optional_number(settings, "actor_rollout_ref.actor.ppo_mini_batch_size") or 1) * batches


def require_number(settings: TrainerSettings, name: str) -> int:
    value = settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{name}={value} is not a whole number; give it with --set {name}=NUMBER.")
    return value


def parse_optional_number(settings: TrainerSettings, name: str) -> int | None:
    return require_number(settings, name) if settings.get(name) is not None else None


def _has_rollout_correction(settings: TrainerSettings) -> bool | None:
    names = (f"{CORRECTION}rollout_is", f"{CORRECTION}rollout_rs")
    corrections = [settings[name] for name in names if name in settings]
    return any(value not in (None, "null", False) for value in corrections) if corrections else None


def guess_settings(project: str, run: str, pinned: TrainerSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the probable settings of a run: those of the `pinned` run, else those that its batches show.

    Experiment and project have the names of the pinned run, else those that the plug-in and the recommended folders
    give to a run.
    """
    known: dict[str, Any] = {
        "trainer.use_v1": facts.get("role") == "rollout_tq",
        SAMPLES_PER_PROMPT: facts.get("samples_per_prompt"),
        PROMPT: facts.get("max_prompt_length"),
        RESPONSE: facts.get("max_response_length"),
    }
    if facts.get("role") == "async_rollout":
        known["async_training.require_batches"] = 1
    else:
        known[BATCH] = facts.get("prompts")
    if (facts.get("parameter_sync_step") or 1) > 1:
        known |= {MODE: "separate_async", "trainer.v1.separate_async.parameter_sync_step": facts["parameter_sync_step"]}
    if VERL_08_FILE in facts.get("files", ()):
        known |= {f"{VERL_08_SKIP_PREFIX}enable": True}
    return {EXPERIMENT: run, PROJECT: project, **(pinned or drop_none(known))}
