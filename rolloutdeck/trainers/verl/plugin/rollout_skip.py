"""Registers verl's three rollout-skip roles again: a step that the plan pins is replayed from its pin.

All other steps follow verl and its `skip.*` settings. Steps that verl dumps are reported to the server, so that they
can be pinned.

`SkipManager` tests `step in skip.steps`, then calls `meet_precondition`, then `warp_function` loads the step; V1 calls
`maybe_load_and_inject`, where `load_dump_data` loads it. The safe reader builds what these methods would unpickle:
`load_dump_data` runs with another `torch.load`. A role is used only in the trainer that it is made for.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.trainers.common import catch_errors, wrap_method
from rolloutdeck.trainers.verl.layout import GEN
from rolloutdeck.trainers.verl.plugin.replay import VerlReplay, open_replay
from rolloutdeck.trainers.verl.plugin.session import VerlSession, find_verl_session

SKIP_ROLES = ("rollout", "rollout_tq", "async_rollout")
ROLE_ATTRIBUTE = "_rolloutdeck_role"
VerlSkip: Any = object  # verl's class for a role, which is known at run time only
UNKNOWN_LOADER = "this version of verl loads its dumps in a way that Rolloutdeck does not know, and might unpickle them"


def patch(module: ModuleType) -> None:
    from verl.utils.skip.base_skip import SKIP_REGISTRY, register_skip

    for role in SKIP_ROLES:
        verl_class = SKIP_REGISTRY.get(role)
        if verl_class is not None and not hasattr(verl_class, ROLE_ATTRIBUTE):
            register_skip(role)(build_skip_class(role, verl_class))
    wrap_method(module.SkipManager, "init", wrap_init)


def wrap_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """Enables the role of this trainer before the roles are created, if the plan has entries."""

    def init(config: Any) -> Any:
        replay = get_replay(config)
        if replay:
            enable(config, replay.requirements.role)
        return original(config)

    return init


class PlannedSteps(Container[int]):
    """The steps in verl's settings, and those in the plan."""

    def __init__(self, configured: Container[int], replay: VerlReplay) -> None:
        self.configured, self.replay = configured, replay

    def __contains__(self, step: object) -> bool:
        return step in self.configured or (isinstance(step, int) and self.replay.has_step(step))


class TorchProxy:
    """torch with another `load`."""

    def __init__(self, torch: Any, load: Callable[[Path], Any]) -> None:
        self._torch = torch
        self._load = load

    def load(self, path: Any, **_: Any) -> Any:
        return self._load(Path(path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


def has_torch_load(function: Any) -> bool:
    """Returns whether the function itself calls `torch.load`, so that it can be replaced."""
    return isinstance(function, FunctionType) and {"torch", "load"} <= {*function.__code__.co_names}


def replace_torch_load(function: FunctionType, load: Callable[[Path], Any]) -> FunctionType:
    """Returns a copy of the function that calls `load(path)` instead of `torch.load`. Its module is not changed."""
    names = {**function.__globals__, "torch": TorchProxy(function.__globals__["torch"], load)}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class PinnedSkip(VerlSkip):  # type: ignore[misc]
    """Base of the classes that are registered: replays pinned steps, and leaves all others to verl's class."""

    is_known_loader: bool
    steps: Any
    enable: bool

    def __init__(self, local_config: Any, global_config: Any) -> None:
        super().__init__(local_config, global_config)
        self.session: VerlSession | None = find_session(global_config)
        replay = get_replay(global_config)
        self.replay = replay if replay and replay.requirements.role == getattr(self, ROLE_ATTRIBUTE) else None
        self.pinned_folders: dict[int, Path] = {}  # the step that is replayed -> its folder
        self.pinned_batches: dict[Path, Any] = {}  # file -> its content, until verl takes it
        self.configured_steps: Container[int] = list(self.steps) if self.enable else []
        if self.session and self.configured_steps:
            self.session.writes_dumps = True
        if self.replay:
            self.enable, self.steps = True, PlannedSteps(self.configured_steps, self.replay)

    def meet_precondition(self, step: int, *args: Any, **kwargs: Any) -> bool:
        self.pinned_folders.clear()
        self.pinned_batches.clear()
        if self.replay is None or not self.replay.has_step(step):
            return bool(super().meet_precondition(step, *args, **kwargs))
        if not self.is_known_loader:
            self.replay.report_not_replayed(step, NotReplayableError(UNKNOWN_LOADER))
            return False
        loaded = self.replay.load_step(step, get_prompts(args, kwargs))
        if loaded is not None:
            self.pinned_folders[step] = loaded.folder
            self.pinned_batches.update(loaded.batches)
        return loaded is not None

    def warp_function(self, step: int, *args: Any, **kwargs: Any) -> Any:
        if step in self.pinned_folders:
            return self.pinned_batches.pop(self.pinned_folders[step] / GEN)
        return super().warp_function(step, *args, **kwargs)

    def load_dump_data(self, step: int, *args: Any, **kwargs: Any) -> None:
        load = super().load_dump_data.__func__
        if step in self.pinned_folders:
            load = replace_torch_load(load, self.pinned_batches.pop)
        load(self, step, *args, **kwargs)

    def _get_step_dump_dir(self, step: int) -> Path:
        return self.pinned_folders.get(step) or Path(super()._get_step_dump_dir(step))

    def should_save(self, step: int, partition_id: str = "train") -> bool:
        is_dumped = step in self.configured_steps and step not in self.pinned_folders
        return is_dumped and bool(super().should_save(step, partition_id))

    def prepare_data(self, step: int, *args: Any, **kwargs: Any) -> None:
        if step in self.configured_steps:
            super().prepare_data(step, *args, **kwargs)
            log_dumped_step(self, getattr(self, ROLE_ATTRIBUTE), step)


def build_skip_class(role: str, verl_class: Any) -> Any:
    """Returns a subclass of verl's class for the role."""
    attributes = {ROLE_ATTRIBUTE: role, "is_known_loader": has_known_loader(role, verl_class)}
    return type(verl_class.__name__, (PinnedSkip, verl_class), attributes)


def has_known_loader(role: str, verl_class: Any) -> bool:
    if role == "rollout_tq":
        return has_torch_load(getattr(verl_class, "load_dump_data", None))
    return hasattr(verl_class, "warp_function")


def get_prompts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the messages of the rows of a decorated `generate_sequences(self, prompts)`; None in V1."""
    proto = kwargs.get("prompts", args[2] if len(args) > 2 else None)
    arrays = getattr(proto, "non_tensor_batch", None)
    return list(arrays["raw_prompt"]) if arrays and "raw_prompt" in arrays else None


@catch_errors
def log_dumped_step(skip: Any, role: str, step: int) -> None:
    """Reports a step that verl has dumped, once it is complete. Its files are uploaded when it is pinned."""
    folder = Path(skip._get_step_dump_dir(step))
    is_complete = skip._check_valid_v1_step(step) if role == "rollout_tq" else skip._check_valid_step_path(folder)
    if skip.session and is_complete:
        kind = "feed_index" if role == "async_rollout" else "global_step"
        skip.session.run.log_artifact(folder, step, role, step_kind=kind)


find_session = catch_errors(find_verl_session)
_replays: dict[int, VerlReplay | None] = {}


def get_replay(config: Any) -> VerlReplay | None:
    """Returns the replay of this process; it is opened once for each session."""
    session = find_session(config)
    if session is None:
        return None
    if id(session) not in _replays:
        _replays[id(session)] = open_replay(session, config)
    return _replays[id(session)]


@catch_errors
def enable(config: Any, role: str) -> None:
    """Enables the role. V1's async modes then skip their warm-up, which is necessary to replay a step.

    No step is named, so verl dumps none.
    """
    from omegaconf import open_dict

    if not config.skip[role].get("enable"):
        with open_dict(config):
            config.skip[role].enable, config.skip[role].steps = True, []
