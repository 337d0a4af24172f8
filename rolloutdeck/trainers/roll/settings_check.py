"""Which of ROLL's settings would lose samples. Read from ROLL 8eb27cc2: `configs/base_config.py`,
`pipeline/rlvr/{utils,rlvr_pipeline}.py` (`json_checker`, `val`), `pipeline/agentic/{utils,agentic_pipeline}.py`,
`distributed/scheduler/{rollout_mock_mixin,generate_scheduler}.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolloutdeck.trainer_api import SettingsIssue

TrainerSettings = Mapping[str, Any]

FOLDER = "/shared/rl/PROJECT/${exp_name}"
DUMP = f"rollout_dump_dir: {FOLDER}/rollout"
MOCK = ("rollout_mock:", "  enable: true", "  mode: dump", f"  dump_dir: {FOLDER}/mock")
NO_MOCK = ("rollout_mock:", "  enable: false")
# The only environment managers that say which columns to write (COLUMMNS_CONFIG, as ROLL spells it).
WRITING = ("ProxyEnvManager", "AgentNativeStepEnvManager")
EVAL_STEPS = 10  # ROLL's default
TRACKER = "rolloutdeck"  # see tracker.py
UNTRACKED = "Metrics are written nowhere."
# Of each pipeline that trains on what a data set holds (pipeline/{sft,dpo,distill}/*_config.py), a setting of its own.
WITHOUT_GENERATIONS = {"SFT": "sft_train.", "DPO": "chosen_key", "distillation": "student."}


def check_settings(settings: TrainerSettings, *, complete: bool) -> list[SettingsIssue]:
    """`settings`: dotted name -> value of ROLL's YAML."""
    if kind := _trains_only(settings):
        return [SettingsIssue(f"{kind} generates nothing: it has metrics and no samples"), *_metrics(settings)]
    agentic = _is_agentic(settings)
    findings = [*_nowhere(settings), *_relative(settings), *_mock(settings), *_domains(settings), *_board(settings)]
    return [*findings, *_agentic(settings), *([] if agentic else _validation(settings)), *_metrics(settings)]


def _trains_only(settings: TrainerSettings) -> str:
    names = WITHOUT_GENERATIONS.items()
    return next((kind for kind, own in names if any(name.startswith(own) for name in settings)), "")


def _is_agentic(settings: TrainerSettings) -> bool:
    return any(name.startswith(("train_env_manager.", "custom_envs.", "env_manager_cls")) for name in settings)


def _mocks(settings: TrainerSettings, mode: str) -> bool:
    return settings.get("rollout_mock.enable") is True and settings.get("rollout_mock.mode", "dump") == mode


def _dumps_batches(settings: TrainerSettings) -> bool:
    return _mocks(settings, "dump") and settings.get("generate_opt_level", 1) != 0


def _is_absolute(path: object) -> bool:
    return str(path).startswith(("/", "$"))


def _validates(settings: TrainerSettings) -> bool:
    every = settings.get("eval_steps", EVAL_STEPS)
    return isinstance(every, int) and every > 0


def _nowhere(settings: TrainerSettings) -> list[SettingsIssue]:
    if settings.get("rollout_dump_dir") or settings.get("rollout_mock.enable") is True:
        return []
    if _trains_only(settings):
        return []
    return [SettingsIssue("rollout_dump_dir is not set", "Generations are written nowhere.", (DUMP,))]


def _relative(settings: TrainerSettings) -> list[SettingsIssue]:
    path = settings.get("rollout_dump_dir")
    if not path or _is_absolute(path):
        return []
    lost = "ROLL writes only to paths that begin with /, and is silent about others: no generation is written."
    return [SettingsIssue(f"rollout_dump_dir: {path} is a relative path", lost, (DUMP,))]


def _mock(settings: TrainerSettings) -> list[SettingsIssue]:
    findings = []
    folder = settings.get("rollout_mock.dump_dir", "./rollout_mock_dumps")
    if settings.get("rollout_mock.enable") is True and not _is_absolute(folder):
        title = (
            f"rollout_mock.dump_dir: {folder} is a relative path: it counts from the working directory of a Ray actor"
        )
        findings.append(SettingsIssue(title))
    if _mocks(settings, "dump") and settings.get("generate_opt_level", 1) == 0:
        lost = "ROLL returns before it dumps: rollout_mock writes nothing, and nothing says so."
        findings.append(SettingsIssue("generate_opt_level: 0", lost, ("generate_opt_level: 1",)))
    if _mocks(settings, "mock"):
        steps = settings.get("max_steps", 500)
        last = f"step_{steps - 1:06d}.pkl" if isinstance(steps, int) and steps > 0 else "the last step"
        title = (
            f"rollout_mock.mode: mock generates nothing and asks for every file up to train/{last}; one that is missing"
        )
        findings.append(SettingsIssue(f"{title} ends the run"))
    return findings


def _domains(settings: TrainerSettings) -> list[SettingsIssue]:
    prefix = "actor_train.data_args.domain_interleave_probs."
    domains = [name.removeprefix(prefix) for name in settings if name.startswith(prefix)]
    if len(domains) < 2 or settings.get("rollout_mock.enable") is not True:
        return []
    title = f"rollout_mock with {len(domains)} domains"
    lost = f"Each of {', '.join(domains)} has the same train/step_N.pkl: the last batch is kept, and loaded for all"
    written = settings.get("rollout_dump_dir")
    if written and _is_absolute(written) and not _mocks(settings, "mock"):
        return [SettingsIssue(f"{title}: {lost[0].lower()}{lost[1:]}; rollout_dump_dir has the samples of each")]
    return [SettingsIssue(title, f"{lost}.", NO_MOCK if written else (*NO_MOCK, DUMP))]


def _board(settings: TrainerSettings) -> list[SettingsIssue]:
    folder = settings.get("save_logging_board_dir")
    if not folder:
        return []
    doubled = SettingsIssue("save_logging_board_dir: log-probs are computed twice in every step")
    if str(folder).endswith("/"):
        return [doubled]
    lost = f"ROLL puts the name right behind it: the files are {folder}data_….jsonl, beside the folder."
    return [SettingsIssue(f"save_logging_board_dir: {folder}", lost, (f"save_logging_board_dir: {folder}/",)), doubled]


def _validation(settings: TrainerSettings) -> list[SettingsIssue]:
    """RLVR: `val` has no dump of its own; the mock dump of its scheduler is the only file."""
    if not _validates(settings) or _dumps_batches(settings):
        return []
    if not any(name.startswith("validation.") for name in settings):
        return []
    return [SettingsIssue("RLVR dumps no validation", "What is generated at eval_steps is written nowhere.", MOCK)]


def _agentic(settings: TrainerSettings) -> list[SettingsIssue]:
    """Agents, as if rollout_dump_dir were what it should be: environments may write nothing to it, and validation has
    the name of the training's file."""
    mocked = settings.get("rollout_mock.enable") is True and not settings.get("rollout_dump_dir")
    if not _is_agentic(settings) or mocked or _dumps_batches(settings):
        return []
    silent = sorted(manager for manager in _managers(settings) if manager.rpartition(".")[2] not in WRITING)
    if silent:
        names = ", ".join(manager.rpartition(".")[2] for manager in silent)
        lost = f"It names no columns, so nothing is written there. {' and '.join(WRITING)} do."
        return [SettingsIssue(f"rollout_dump_dir with {names}", lost, MOCK)]
    if not _validates(settings):
        return []
    lost = "Validation and training write the same rollout_dump_data.step_N.jsonl; whichever is later is kept."
    return [SettingsIssue(f"eval_steps: {settings.get('eval_steps', EVAL_STEPS)} of agents", lost, MOCK)]


def _metrics(settings: TrainerSettings) -> list[SettingsIssue]:
    tracker = settings.get("track_with", "tensorboard")
    if tracker == TRACKER:
        return (
            []
            if _has_folder(settings)
            else [SettingsIssue(f"track_with: {TRACKER} without a folder", UNTRACKED, (DUMP,))]
        )
    title = f"track_with: {tracker or 'null'} keeps no metrics beside the samples; {TRACKER} does, after roll.track()"
    words = [f"  also: {tracker}"] if tracker else []
    words += [] if _has_folder(settings) or _nowhere(settings) else [f"  folder: {FOLDER}/rollout"]
    if words and any(name.startswith("tracker_kwargs.") for name in settings):
        words.append("  # and, below these, what tracker_kwargs has already")
    return [SettingsIssue(title, paste=(f"track_with: {TRACKER}", *(["tracker_kwargs:", *words] if words else [])))]


def _has_folder(settings: TrainerSettings) -> bool:
    return bool(settings.get("rollout_dump_dir") or settings.get("tracker_kwargs.folder"))


def _managers(settings: TrainerSettings) -> set[str]:
    """The classes of the environments that are trained on; those of all where no tag names them."""
    tags = settings.get("train_env_manager.tags")
    own = [settings.get(f"custom_env{s}.{tag}.env_manager_cls") for tag in tags or () for s in ("s", "")]
    return {str(name) for name in own if name} or {str(settings.get("env_manager_cls") or "TrajEnvManager")}


def recommended_lines() -> list[str]:
    return [DUMP]


def store_lines() -> list[str]:
    return list(MOCK)
