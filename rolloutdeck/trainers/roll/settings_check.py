"""Checks which settings of ROLL would lose samples. Source: ROLL 8eb27cc2: `configs/base_config.py`,
`pipeline/rlvr/{utils,rlvr_pipeline}.py` (`json_checker`, `val`), `pipeline/agentic/{utils,agentic_pipeline}.py`,
`distributed/scheduler/{rollout_mock_mixin,generate_scheduler}.py`."""

from __future__ import annotations

from rolloutdeck.trainer_api import SettingsIssue, TrainerSettings, build_undetermined_issue
from rolloutdeck.trainer_config import is_unresolved, may_be_empty

FOLDER = "/shared/rl/PROJECT/${exp_name}"
DUMP = f"rollout_dump_dir: {FOLDER}/rollout"
MOCK = ("rollout_mock:", "  enable: true", "  mode: dump", f"  dump_dir: {FOLDER}/mock")
NO_MOCK = ("rollout_mock:", "  enable: false")
# The only environment managers that define the columns to write (COLUMMNS_CONFIG, in ROLL's spelling).
WRITING_MANAGERS = ("ProxyEnvManager", "AgentNativeStepEnvManager")
EVAL_STEPS = 10  # ROLL's default
TRACKER = "rolloutdeck"  # see tracker.py
# Pipelines that train on a data set (pipeline/{sft,dpo,distill}/*_config.py) -> a setting that only they have.
PIPELINES_WITHOUT_ROLLOUTS = {"SFT": "sft_train.", "DPO": "chosen_key", "distillation": "student."}


def check_settings(settings: TrainerSettings, *, complete: bool) -> list[SettingsIssue]:
    """Returns the issues. `settings`: dotted name -> value of ROLL's YAML."""
    if kind := _find_pipeline_without_rollouts(settings):
        return [SettingsIssue(f"{kind} generates nothing: it has metrics and no samples"), *_check_metrics(settings)]
    issues = [*_check_dump_folder(settings), *_check_mock(settings), *_check_domains(settings)]
    issues += _check_logging_board(settings)
    issues += _check_agents(settings) if _is_agentic(settings) else _check_validation(settings)
    return [*issues, *_check_unknown(settings), *_check_metrics(settings)]


def _check_unknown(settings: TrainerSettings) -> list[SettingsIssue]:
    lost = "It decides whether batches and validations are stored."
    return [build_undetermined_issue(setting, lost, MOCK) for setting in _find_unknown_validation(settings)]


def _find_pipeline_without_rollouts(settings: TrainerSettings) -> str:
    pipelines = PIPELINES_WITHOUT_ROLLOUTS.items()
    return next((kind for kind, setting in pipelines if any(name.startswith(setting) for name in settings)), "")


def _is_agentic(settings: TrainerSettings) -> bool:
    return any(name.startswith(("train_env_manager.", "custom_envs.", "env_manager_cls")) for name in settings)


def _only_generates(settings: TrainerSettings) -> bool:
    """Returns whether this is a configuration of the rollout pipeline of agents, which neither trains nor validates."""
    trains = any(name.startswith(("actor_train.strategy_args.", "actor_train.training_args.")) for name in settings)
    return not trains and any(name.startswith("actor_infer.") for name in settings)


def _is_mock_mode(settings: TrainerSettings, mode: str) -> bool:
    return settings.get("rollout_mock.enable") is True and settings.get("rollout_mock.mode", "dump") == mode


def _dumps_batches(settings: TrainerSettings) -> bool:
    return _is_mock_mode(settings, "dump") and settings.get("generate_opt_level", 1) != 0


def _is_absolute(path: object) -> bool:
    return str(path).startswith(("/", "$"))


def _find_unknown_validation(settings: TrainerSettings) -> list[str]:
    """Returns the settings, `name: value`, that have no known value and decide whether validations are stored."""
    names = ("eval_steps", "rollout_mock.enable", "rollout_mock.mode", "generate_opt_level")
    return [f"{name}: {settings[name]}" for name in names if is_unresolved(settings.get(name))]


def _has_validation(settings: TrainerSettings) -> bool:
    every = settings.get("eval_steps", EVAL_STEPS)
    return isinstance(every, int) and every > 0


def _check_dump_folder(settings: TrainerSettings) -> list[SettingsIssue]:
    path = settings.get("rollout_dump_dir")
    if may_be_empty(path) and settings.get("rollout_mock.enable") is not True:
        lost = "If it does not begin with /, generations are written nowhere."
        return [build_undetermined_issue(f"rollout_dump_dir: {path}", lost, (DUMP,))]
    if path and not _is_absolute(path):
        rule = "ROLL writes only to paths that begin with /, and ignores others without a message"
        lost = f"{rule}: no generation is written."
        return [SettingsIssue(f"rollout_dump_dir: {path} is a relative path", lost, (DUMP,))]
    mock = settings.get("rollout_mock.enable")
    if path or mock is True or is_unresolved(mock) or _find_pipeline_without_rollouts(settings):
        return []
    return [SettingsIssue("rollout_dump_dir is not set", "Generations are written nowhere.", (DUMP,))]


def _check_mock(settings: TrainerSettings) -> list[SettingsIssue]:
    findings = []
    folder = settings.get("rollout_mock.dump_dir", "./rollout_mock_dumps")
    if settings.get("rollout_mock.enable") is True and not _is_absolute(folder):
        rule = "is a relative path: it counts from the working directory of a Ray actor"
        findings.append(SettingsIssue(f"rollout_mock.dump_dir: {folder} {rule}"))
    if _is_mock_mode(settings, "dump") and settings.get("generate_opt_level", 1) == 0:
        lost = "ROLL returns before it dumps: rollout_mock writes nothing, without a message."
        findings.append(SettingsIssue("generate_opt_level: 0", lost, ("generate_opt_level: 1",)))
    if _is_mock_mode(settings, "mock"):
        steps = settings.get("max_steps", 500)
        last = f"step_{steps - 1:06d}.pkl" if isinstance(steps, int) and steps > 0 else "the last step"
        title = f"rollout_mock.mode: mock generates nothing and needs every file up to train/{last}"
        findings.append(SettingsIssue(f"{title}; one that is missing ends the run"))
    return findings


def _check_domains(settings: TrainerSettings) -> list[SettingsIssue]:
    prefix = "actor_train.data_args.domain_interleave_probs."
    domains = [name.removeprefix(prefix) for name in settings if name.startswith(prefix)]
    if len(domains) < 2 or settings.get("rollout_mock.enable") is not True:
        return []
    title, names = f"rollout_mock with {len(domains)} domains", ", ".join(domains)
    lost = f"Each of {names} has the same train/step_N.pkl: only the last batch is stored, and loaded for all"
    dump_folder = settings.get("rollout_dump_dir")
    if dump_folder and _is_absolute(dump_folder) and not _is_mock_mode(settings, "mock"):
        return [SettingsIssue(f"{title}: {lost[0].lower()}{lost[1:]}; rollout_dump_dir has the samples of each")]
    return [SettingsIssue(title, f"{lost}.", NO_MOCK if dump_folder else (*NO_MOCK, DUMP))]


def _check_logging_board(settings: TrainerSettings) -> list[SettingsIssue]:
    folder = settings.get("save_logging_board_dir")
    if not folder:
        return []
    doubled = SettingsIssue("save_logging_board_dir: log-probs are computed twice in every step")
    if str(folder).endswith("/"):
        return [doubled]
    lost = f"ROLL appends the name to it: the files are {folder}data_….jsonl, next to the folder."
    return [SettingsIssue(f"save_logging_board_dir: {folder}", lost, (f"save_logging_board_dir: {folder}/",)), doubled]


def _check_validation(settings: TrainerSettings) -> list[SettingsIssue]:
    """Checks RLVR: `val` has no dump; the mock dump of its scheduler is the only file."""
    if not _has_validation(settings) or _dumps_batches(settings) or _find_unknown_validation(settings):
        return []
    if not any(name.startswith("validation.") for name in settings):
        return []
    return [SettingsIssue("RLVR dumps no validation", "What is generated at eval_steps is written nowhere.", MOCK)]


def _check_agents(settings: TrainerSettings) -> list[SettingsIssue]:
    """Checks agents, as if rollout_dump_dir were set correctly.

    Environments may write nothing to it, and a validation has the file name of the training.
    """
    uses_mock_only = settings.get("rollout_mock.enable") is True and not settings.get("rollout_dump_dir")
    if uses_mock_only or _dumps_batches(settings) or _find_unknown_validation(settings):
        return []
    managers = [manager.rpartition(".")[2] for manager in sorted(_list_environment_managers(settings))]
    if without_columns := [manager for manager in managers if manager not in WRITING_MANAGERS]:
        lost = f"It defines no columns, so nothing is written there. {' and '.join(WRITING_MANAGERS)} do."
        if unknown := [manager for manager in without_columns if is_unresolved(manager)]:
            return [build_undetermined_issue(f"env_manager_cls: {unknown[0]}", f"For most classes: {lost}", MOCK)]
        return [SettingsIssue(f"rollout_dump_dir with {', '.join(without_columns)}", lost, MOCK)]
    if not _has_validation(settings) or _only_generates(settings):
        return []
    lost = "Validation and training write the same rollout_dump_data.step_N.jsonl; the later one overwrites the other."
    return [SettingsIssue(f"eval_steps: {settings.get('eval_steps', EVAL_STEPS)} of agents", lost, MOCK)]


def _check_metrics(settings: TrainerSettings) -> list[SettingsIssue]:
    tracker = settings.get("track_with", "tensorboard")
    has_folder = bool(settings.get("rollout_dump_dir") or settings.get("tracker_kwargs.folder"))
    if tracker == TRACKER:
        issue = SettingsIssue(f"track_with: {TRACKER} without a folder", "Metrics are written nowhere.", (DUMP,))
        return [] if has_folder else [issue]
    title = f"track_with: {tracker or 'null'} writes no metrics next to the samples; {TRACKER} does, after roll.track()"
    lines = [f"  also: {tracker}"] if tracker else []
    lines += [] if has_folder or _check_dump_folder(settings) else [f"  folder: {FOLDER}/rollout"]
    if lines and any(name.startswith("tracker_kwargs.") for name in settings):
        lines.append("  # then the present settings of tracker_kwargs")
    return [SettingsIssue(title, fix=(f"track_with: {TRACKER}", *(["tracker_kwargs:", *lines] if lines else [])))]


def _list_environment_managers(settings: TrainerSettings) -> set[str]:
    """Returns the classes of the environments that are trained on; those of all if no tag names them."""
    tags = settings.get("train_env_manager.tags")
    classes = [settings.get(f"custom_env{s}.{tag}.env_manager_cls") for tag in tags or () for s in ("s", "")]
    return {str(name) for name in classes if name} or {str(settings.get("env_manager_cls") or "TrajEnvManager")}


def recommended_lines() -> list[str]:
    return [DUMP]


def store_lines() -> list[str]:
    return list(MOCK)
