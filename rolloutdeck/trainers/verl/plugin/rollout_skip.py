"""verl's three rollout-skip roles, registered again: a step that the plan has a pin for is taken from there, all else
is as verl and its `skip.*` settings have it. What verl dumps is told to the server, so that it can be pinned.

`SkipManager` asks `step in skip.steps`, then `meet_precondition`, then has `warp_function` load the step; V1 asks
`maybe_load_and_inject`, which has `load_dump_data` do it. What they would unpickle was built by the safe reader. A role
counts only in the trainer that it is made for.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import catch_errors, wrap_method
from rolloutdeck.trainers.verl.layout import GEN
from rolloutdeck.trainers.verl.plugin import replay_reader
from rolloutdeck.trainers.verl.plugin.replay import VerlReplay, open_replay
from rolloutdeck.trainers.verl.plugin.session import VerlSession, find_verl_session

SKIP_ROLES = ("rollout", "rollout_tq", "async_rollout")
MARK = "_rolloutdeck_role"
UNKNOWN_LOADER = "this verl loads its dumps in another way than Rolloutdeck knows, and might unpickle them"


def patch(module: ModuleType) -> None:
    from verl.utils.skip.base_skip import SKIP_REGISTRY, register_skip

    for role in SKIP_ROLES:
        theirs = SKIP_REGISTRY.get(role)
        if theirs is not None and not hasattr(theirs, MARK):
            register_skip(role)(build_skip_class(role, theirs))
    wrap_method(module.SkipManager, "init", begin)


def begin(original: Callable[..., Any]) -> Callable[..., Any]:
    """Before the roles are made: the one that this trainer uses has to be enabled where the plan has something."""

    def init(config: Any) -> Any:
        found = replay_of(config)
        if found:
            enable(config, found.asking.role)
        return original(config)

    return init


class PlannedSteps(Container[int]):
    """The steps that verl's settings name, and those that the plan has something for."""

    def __init__(self, own: Container[int], replay: VerlReplay) -> None:
        self.own, self.replay = own, replay

    def __contains__(self, step: object) -> bool:
        return step in self.own or (isinstance(step, int) and self.replay.wants(step))


def build_skip_class(role: str, theirs: Any) -> Any:
    """A subclass of verl's class for the role."""
    known_way = loads_as_known(role, theirs)

    class Pinned(theirs):  # type: ignore[misc]
        steps: Any
        enable: bool

        def __init__(self, local_config: Any, global_config: Any) -> None:
            super().__init__(local_config, global_config)
            self.session: VerlSession | None = known(global_config)
            found = replay_of(global_config)
            self.replay = found if found and found.asking.role == role else None
            self.placed: dict[int, Path] = {}  # the step that is replayed, and its folder
            self.built: dict[Path, Any] = {}  # what its files hold, until it is taken
            self.own: Container[int] = list(self.steps) if self.enable else []
            if self.session and self.own:
                self.session.dumps = True
            if self.replay:
                self.enable, self.steps = True, PlannedSteps(self.own, self.replay)

        def meet_precondition(self, step: int, *args: Any, **kwargs: Any) -> bool:
            self.placed.clear()
            self.built.clear()
            if self.replay is None or not self.replay.wants(step):
                return bool(super().meet_precondition(step, *args, **kwargs))
            if not known_way:
                self.replay.leave(step, "refused", UNKNOWN_LOADER)
                return False
            found = self.replay.loaded(step, prompts_of(args, kwargs))
            if found is not None:
                self.placed[step] = found.folder
                self.built.update(found.batches)
            return found is not None

        def warp_function(self, step: int, *args: Any, **kwargs: Any) -> Any:
            if step in self.placed:
                return self.built.pop(self.placed[step] / GEN)
            return super().warp_function(step, *args, **kwargs)

        def load_dump_data(self, step: int, *args: Any, **kwargs: Any) -> None:
            load = theirs.load_dump_data
            if step in self.placed:
                load = replay_reader.replace_torch_load(load, self.built.pop)
            load(self, step, *args, **kwargs)

        def _get_step_dump_dir(self, step: int) -> Path:
            return self.placed.get(step) or Path(super()._get_step_dump_dir(step))

        def should_save(self, step: int, partition_id: str = "train") -> bool:
            return step in self.own and step not in self.placed and bool(super().should_save(step, partition_id))

        def prepare_data(self, step: int, *args: Any, **kwargs: Any) -> None:
            if step not in self.own:
                return
            super().prepare_data(step, *args, **kwargs)
            log_dumped_step(self, role, step)

    setattr(Pinned, MARK, role)
    Pinned.__name__ = Pinned.__qualname__ = theirs.__name__
    return Pinned


def loads_as_known(role: str, theirs: Any) -> bool:
    if role == "rollout_tq":
        return replay_reader.has_torch_load(getattr(theirs, "load_dump_data", None))
    return hasattr(theirs, "warp_function")


def prompts_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The messages of the rows that a decorated `generate_sequences(self, prompts)` is called with; V1 hands none."""
    proto = kwargs.get("prompts", args[2] if len(args) > 2 else None)
    arrays = getattr(proto, "non_tensor_batch", None)
    return list(arrays["raw_prompt"]) if arrays and "raw_prompt" in arrays else None


@catch_errors
def log_dumped_step(skip: Any, role: str, step: int) -> None:
    """Tells the server of a step that verl has dumped, once it is whole; its bytes go when it is pinned."""
    folder = Path(skip._get_step_dump_dir(step))
    whole = skip._check_valid_v1_step(step) if role == "rollout_tq" else skip._check_valid_step_path(folder)
    if skip.session and whole:
        kind = "feed_index" if role == "async_rollout" else "global_step"
        skip.session.run.log_artifact(folder, step, role, step_kind=kind)


known = catch_errors(find_verl_session)
_replays: dict[int, VerlReplay | None] = {}


def replay_of(config: Any) -> VerlReplay | None:
    """The replay of this process, asked for once for each session."""
    session = known(config)
    if session is None:
        return None
    if id(session) not in _replays:
        _replays[id(session)] = open_replay(session, config)
    return _replays[id(session)]


@catch_errors
def enable(config: Any, role: str) -> None:
    """V1's async modes leave out their warm-up where the role is enabled, as they must for a step to be replayed.
    No step is named, so verl dumps none."""
    from omegaconf import open_dict

    if not config.skip[role].get("enable"):
        with open_dict(config):
            config.skip[role].enable, config.skip[role].steps = True, []
