"""Where a run of verl looks for steps to replay, what it can take, and the overrides that make it look there."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.trainer_config import load
from rolloutdeck.trainers.verl.facts import guess_settings
from rolloutdeck.trainers.verl.layout import VerlRequirements, read_requirements

NAMED = {
    "trainer.experiment_name": "grpo-2",
    "trainer.project_name": "math",
    "actor_rollout_ref.rollout.n": 4,
    "data.max_prompt_length": 128,
    "data.max_response_length": 256,
    "data.train_batch_size": 8,
}
V0 = {**NAMED, "trainer.use_v1": False}
ASYNC = {**NAMED, "async_training.require_batches": 2, "actor_rollout_ref.actor.ppo_mini_batch_size": 8}
V2 = {**NAMED, "actor_rollout_ref.rollout.skip.enable": False}


def asks(config: dict[str, Any], **changed: Any) -> VerlRequirements:
    return read_requirements({**config, **{name.replace("__", "."): value for name, value in changed.items()}})


@pytest.mark.parametrize(
    ("config", "role", "step"),
    [
        (NAMED, "rollout_tq", "grpo-2_math/GBS8_N4_in128_out256/3"),
        (V0, "rollout", "grpo-2_math/GBS8_N4_in128_out256/3"),
        ({**V0, "data.gen_batch_size": 16}, "rollout", "grpo-2_math/GBS16_N4_in128_out256/3"),
        ({**NAMED, "data.gen_batch_size": 4}, "rollout_tq", "grpo-2_math/GBS4_N4_in128_out256/3"),
        ({**NAMED, "trainer.v1.trainer_mode": "colocate_async"}, "rollout_tq", "grpo-2_math/GBS1_N4_in128_out256/3"),
        ({**NAMED, "algorithm.filter_groups.enable": True}, "rollout_tq", "grpo-2_math/GBS1_N4_in128_out256/3"),
        (ASYNC, "async_rollout", "grpo-2_math/GBS1_N4_in128_out256/3"),
        (V2, "rollout", "grpo-2_math/GBS8_N4_in128_out256/genstep_000003"),
        ({**NAMED, "trainer.experiment_name": "a/b"}, "rollout_tq", "a/b_math/GBS8_N4_in128_out256/3"),
    ],
)
def test_the_folder_is_named_as_this_trainer_names_it(config: dict[str, Any], role: str, step: str) -> None:
    result = read_requirements(config)
    assert (result.role, str(result.get_step_folder(3))) == (role, step)


@pytest.mark.parametrize("name", NAMED)
def test_a_setting_in_the_folders_name_is_asked_for_where_the_config_lacks_it(name: str) -> None:
    with pytest.raises(UsageError, match=f"has no {name}; give them with --set"):
        read_requirements({key: value for key, value in NAMED.items() if key != name})


@pytest.mark.parametrize("name", ["/abs", "../out", "a/../../b"])
def test_names_that_lead_out_of_the_folder_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="outside"):
        asks(NAMED, trainer__experiment_name=name)


def test_a_name_that_the_server_masked_is_asked_for() -> None:
    with pytest.raises(UsageError, match="masked.*--set trainer.experiment_name"):
        asks(NAMED, trainer__experiment_name="***")


@pytest.mark.parametrize("setting", ["trainer.experiment_name", "trainer.project_name"])
@pytest.mark.parametrize("value", ["${oc.env:EXP}", "run-${oc.env:EXP}"])
def test_a_name_that_only_the_environment_knows_is_requested(setting: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{setting}=.*--set {setting}=VALUE"):
        asks({**NAMED, setting: value})


def test_the_trainer_that_replays_nothing_is_named() -> None:
    with pytest.raises(UsageError, match="one step off trainer of verl replays nothing"):
        asks(NAMED, rollout__nnodes=1)


def test_verl_that_knows_no_steps_is_told_apart() -> None:
    with pytest.raises(UsageError, match="up to 0.7 replays one file at every step"):
        asks(NAMED, actor_rollout_ref__rollout__skip_rollout=True)


def test_a_run_has_as_many_steps_as_its_settings_say() -> None:
    assert asks(V0, trainer__total_training_steps=30).total_steps == 30
    assert asks(V0).total_steps is None
    assert asks(ASYNC, trainer__total_training_steps=30).total_steps is None  # its folders count prompts


def test_the_facts_count_a_batch_as_the_trainer_does() -> None:
    assert asks(NAMED, actor_rollout_ref__model__path="Qwen/Qwen3-8B").facts == {
        "role": "rollout_tq",
        "format": "tq_batch",
        "serialisation": "torch",
        "rows": 32,
        "prompts": 8,
        "samples_per_prompt": 4,
        "max_prompt_length": 128,
        "max_response_length": 256,
        "parameter_sync_step": 1,
        "model": "Qwen/Qwen3-8B",
    }
    assert asks(V0, data__gen_batch_size=16).facts["rows"] == 64
    assert asks(V0, algorithm__adv_estimator="remax").facts["rows"] == 40  # a greedy answer to each prompt besides
    assert asks(ASYNC).facts["rows"] == 4
    separate = asks(NAMED, trainer__v1__trainer_mode="separate_async", data__gen_batch_size=1)
    assert (separate.facts["rows"], separate.facts["parameter_sync_step"], separate.inner) == (32, 4, 4)
    numpy = {"ray_kwargs__ray_init__runtime_env__env_vars__VERL_DATAPROTO_SERIALIZATION_METHOD": "numpy"}
    assert asks(V0, **numpy).facts["serialisation"] == "numpy"


@pytest.mark.parametrize(("value", "expected"), [("token", True), (None, False)])
def test_a_rollout_correction_is_a_fact(value: str | None, expected: bool) -> None:
    assert asks(NAMED, algorithm__rollout_correction__rollout_is=value).facts["rollout_correction"] is expected
    assert "rollout_correction" not in asks(NAMED).facts


def test_the_flags_are_the_resolved_steps_and_nothing_else() -> None:
    assert asks(V0).build_settings("/d/replay", [4, 2]) == [
        "skip.rollout.enable=True",
        "skip.rollout.dump_dir=/d/replay",
        "'skip.rollout.steps=[2,4]'",
        "skip.rollout.action=cache",
    ]
    assert asks(NAMED).build_settings("/d", [1])[0] == "skip.rollout_tq.enable=True"
    assert asks(ASYNC).build_settings("/d", [1])[0] == "skip.async_rollout.enable=True"


def test_verl_0_8_is_told_up_to_which_step_and_not_to_validate() -> None:
    assert asks(V2).build_settings("/d", [1, 2]) == [
        "actor_rollout_ref.rollout.skip.enable=True",
        "actor_rollout_ref.rollout.skip.dump_dir=/d",
        "actor_rollout_ref.rollout.skip.max_dump_step=2",
        "actor_rollout_ref.rollout.skip.action=cache",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
    ]
    assert "steps 1 to 2" in asks(V2).build_notes([3], moved=False)[0]


@pytest.mark.parametrize("root", ["/a b/c", "/it's", '/say "hi"', "/a=b", "/x,y", "/日本"])
def test_the_flags_survive_a_shell_and_come_back_as_they_were(root: str) -> None:
    words = [word for flag in asks(V0).build_settings(root, [1]) for word in shlex.split(flag)]
    result = load.parse_overrides(words)["skip.rollout.dump_dir"]
    assert result.replace('\\"', '"') == root


def test_a_step_has_the_files_of_its_trainer_with_the_marker_last() -> None:
    assert asks(V0).select_files("rollout", {"meta.json", "gen_batch.dp", "new_batch.dp"}) == [
        "gen_batch.dp",
        "meta.json",
    ]
    assert asks(NAMED).select_files("rollout_tq", {"0/meta.json", "0/tq_batch.pt"}) == ["0/tq_batch.pt", "0/meta.json"]
    assert asks(V2).select_files("rollout", {"new_batch.dp", "meta.json", "gen_batch.dp"})[-1] == "meta.json"


@pytest.mark.parametrize(
    ("config", "role", "files", "reason"),
    [
        (
            V0,
            "rollout_tq",
            {"0/tq_batch.pt", "0/meta.json"},
            "rollout_tq dump of the V1 trainer.*V0 trainer reads",
        ),
        (NAMED, "rollout", {"gen_batch.dp", "meta.json"}, "of the V0 trainer; this run's V1 trainer reads rollout_tq"),
        (V0, "async_rollout", {"gen_batch.dp", "meta.json"}, "of the fully async trainer"),
        (V0, "rollout", {"gen_batch.dp"}, "has no meta.json"),
        (
            NAMED,
            "rollout_tq",
            {f"{i}/{name}" for i in (0, 1) for name in ("tq_batch.pt", "meta.json")},
            "another",
        ),
        (V2, "rollout", {"gen_batch.dp", "meta.json"}, "verl 0.8 needs new_batch.dp as well"),
    ],
)
def test_what_a_trainer_cannot_load_is_told(config: dict[str, Any], role: str, files: set[str], reason: str) -> None:
    with pytest.raises(NotReplayableError, match=reason):
        read_requirements(config).select_files(role, files)


def test_fully_async_moves_the_prompts_of_a_step_by_what_the_steps_between_take() -> None:
    assert asks(V0).get_folder_number(3, "global_step", 3, 5) == 5
    result = asks(ASYNC)  # 16 prompts a training step
    assert [result.get_folder_number(3, "global_step", prompt, 3) for prompt in (33, 47)] == [33, 47]
    assert [result.get_folder_number(3, "global_step", prompt, 5) for prompt in (33, 47)] == [65, 79]
    assert result.get_folder_number(4, "feed_index", 4, 9) == 9


def test_only_batches_of_v0_may_need_a_repair() -> None:
    assert [read_requirements(config).repairable for config in (V0, NAMED, ASYNC, V2)] == [
        ("gen_batch.dp",),
        (),
        (),
        (),
    ]


def test_v0_at_another_step_carries_its_warning() -> None:
    assert "at a step that is not the pinned one, or if rows are excluded" in asks(V0).build_notes([2], moved=True)[0]
    assert asks(V0).build_notes([2], moved=False) == []
    assert "warm-up" in asks(NAMED, trainer__v1__trainer_mode="colocate_async").build_notes([1], moved=False)[0]


def test_a_run_of_which_nothing_is_known_is_shaped_like_the_pinned_batch() -> None:
    shape = {"samples_per_prompt": 4, "max_prompt_length": 128, "max_response_length": 256, "prompts": 8}
    v0 = read_requirements(guess_settings("math", "next", {}, {"role": "rollout", **shape}))
    assert (v0.trainer, str(v0.folder)) == ("V0", "next_math/GBS8_N4_in128_out256")
    separate = read_requirements(
        guess_settings("math", "next", {}, {"role": "rollout_tq", "parameter_sync_step": 2, **shape})
    )
    assert (separate.trainer, separate.inner, separate.folder.name) == ("V1", 2, "GBS1_N4_in128_out256")
    fed = read_requirements(guess_settings("math", "next", {}, {"role": "async_rollout", **shape}))
    assert (fed.trainer, fed.folder.name) == ("fully async", "GBS1_N4_in128_out256")


def test_a_known_configuration_is_taken_with_its_names() -> None:
    result = guess_settings("math", "next", {**V0, "data.gen_batch_size": 16}, {"role": "rollout_tq"})
    assert str(read_requirements(result).folder) == "grpo-2_math/GBS16_N4_in128_out256"
