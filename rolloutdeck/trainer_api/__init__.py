"""What a trainer module offers: the types, and the registry of trainers.

Depends on: the standard library; `rolloutdeck.replay` only for a type.
Invariant: a trainer is data (a frozen dataclass with defaults). Its code is imported when it is used.
"""

from rolloutdeck.trainer_api.registry import (
    TRAINERS,
    find_loader,
    find_steps,
    find_writer,
    format_ends_without_file,
    format_has_only_trained,
    format_replays_own_prompts,
    get_first_step,
    list_hidden_folders,
    list_kinds,
    list_others,
    list_selected_actions,
    list_timings,
    load_step_readers,
    load_trainer,
    read_step,
    resolve_selected_action,
)
from rolloutdeck.trainer_api.timing import PHASES, TimingMetrics, map_phases
from rolloutdeck.trainer_api.types import (
    FileHead,
    FileKind,
    FunctionReference,
    LoadableStep,
    SettingsIssue,
    StepLocation,
    Trainer,
    TrainerFiles,
    TrainerSettings,
    assume_split,
    build_undetermined_issue,
    find_step_in_parents,
    match_step,
    parse_row_step,
)

__all__ = [
    "PHASES", "TRAINERS", "FileHead", "FileKind", "FunctionReference", "LoadableStep", "SettingsIssue",
    "StepLocation", "TimingMetrics", "Trainer", "TrainerFiles", "TrainerSettings", "assume_split",
    "build_undetermined_issue", "find_loader", "find_step_in_parents", "find_steps", "find_writer",
    "format_ends_without_file", "format_has_only_trained", "format_replays_own_prompts", "get_first_step",
    "list_hidden_folders", "list_kinds", "list_others", "list_selected_actions", "list_timings",
    "load_step_readers", "load_trainer", "map_phases", "match_step", "parse_row_step", "read_step",
    "resolve_selected_action",
]  # fmt: skip
