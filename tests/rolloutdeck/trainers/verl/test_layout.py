"""The folders from which a run of verl replays steps, what it can load, and the overrides that turn the replay on."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.trainer_config import load
from rolloutdeck.trainers.verl.facts import guess_settings
from rolloutdeck.trainers.verl.layout import VerlRequirements, read_requirements

SETTINGS = {
    "trainer.experiment_name": "grpo-2",
    "trainer.project_name": "math",
    "actor_rollout_ref.rollout.n": 4,
    "data.max_prompt_length": 128,
    "data.max_response_length": 256,
    "data.train_batch_size": 8,
}
V0 = {**SETTINGS, "trainer.use_v1": False}
ASYNC = {**SETTINGS, "async_training.require_batches": 2, "actor_rollout_ref.actor.ppo_mini_batch_size": 8}
V2 = {**SETTINGS, "actor_rollout_ref.rollout.skip.enable": False}


def build_requirements(config: dict[str, Any], **changed: Any) -> VerlRequirements:
    return read_requirements({**config, **{name.replace("__", "."): value for name, value in changed.items()}})


@pytest.mark.parametrize(
    ("config", "role", "step"),
    [
        (SETTINGS, "rollout_tq", "grpo-2_math/GBS8_N4_in128_out256/3"),
        (V0, "rollout", "grpo-2_math/GBS8_N4_in128_out256/3"),
        ({**V0, "data.gen_batch_size": 16}, "rollout", "grpo-2_math/GBS16_N4_in128_out256/3"),
        ({**SETTINGS, "data.gen_batch_size": 4}, "rollout_tq", "grpo-2_math/GBS4_N4_in128_out256/3"),
        ({**SETTINGS, "trainer.v1.trainer_mode": "colocate_async"}, "rollout_tq", "grpo-2_math/GBS1_N4_in128_out256/3"),
        ({**SETTINGS, "algorithm.filter_groups.enable": True}, "rollout_tq", "grpo-2_math/GBS1_N4_in128_out256/3"),
        (ASYNC, "async_rollout", "grpo-2_math/GBS1_N4_in128_out256/3"),
        (V2, "rollout", "grpo-2_math/GBS8_N4_in128_out256/genstep_000003"),
        ({**SETTINGS, "trainer.experiment_name": "a/b"}, "rollout_tq", "a/b_math/GBS8_N4_in128_out256/3"),
    ],
)
def test_the_folder_is_named_as_this_trainer_names_it(config: dict[str, Any], role: str, step: str) -> None:
    result = read_requirements(config)
    assert (result.role, str(result.get_step_folder(3))) == (role, step)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_in_the_folders_name_is_asked_for_where_the_config_lacks_it(name: str) -> None:
    with pytest.raises(UsageError, match=f"has no {name}; give them with --set"):
        read_requirements({key: value for key, value in SETTINGS.items() if key != name})


@pytest.mark.parametrize("name", ["/abs", "../out", "a/../../b"])
def test_names_that_lead_out_of_the_folder_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="outside"):
        build_requirements(SETTINGS, trainer__experiment_name=name)


def test_a_name_that_the_server_masked_is_asked_for() -> None:
    with pytest.raises(UsageError, match="masked.*--set trainer.experiment_name"):
        build_requirements(SETTINGS, trainer__experiment_name="***")


@pytest.mark.parametrize("setting", ["trainer.experiment_name", "trainer.project_name"])
@pytest.mark.parametrize("value", ["${oc.env:EXP}", "run-${oc.env:EXP}"])
def test_a_name_that_comes_from_the_environment_is_requested(setting: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{setting}=.*--set {setting}=VALUE"):
        build_requirements({**SETTINGS, setting: value})


def test_the_one_step_off_trainer_is_refused_because_it_replays_nothing() -> None:
    with pytest.raises(UsageError, match="one step off trainer of verl replays nothing"):
        build_requirements(SETTINGS, rollout__nnodes=1)


def test_a_verl_that_replays_one_file_at_every_step_is_refused() -> None:
    with pytest.raises(UsageError, match="up to 0.7 replays one file at every step"):
        build_requirements(SETTINGS, actor_rollout_ref__rollout__skip_rollout=True)


def test_a_run_has_as_many_steps_as_its_settings_say() -> None:
    assert build_requirements(V0, trainer__total_training_steps=30).total_steps == 30
    assert build_requirements(V0).total_steps is None
    assert build_requirements(ASYNC, trainer__total_training_steps=30).total_steps is None  # its folders count prompts


def test_the_facts_count_a_batch_as_the_trainer_does() -> None:
    assert build_requirements(SETTINGS, actor_rollout_ref__model__path="Qwen/Qwen3-8B").facts == {
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
    assert build_requirements(V0, data__gen_batch_size=16).facts["rows"] == 64
    remax = build_requirements(V0, algorithm__adv_estimator="remax")
    assert remax.facts["rows"] == 40  # one more greedy answer to each prompt
    assert build_requirements(ASYNC).facts["rows"] == 4
    separate = build_requirements(SETTINGS, trainer__v1__trainer_mode="separate_async", data__gen_batch_size=1)
    assert (separate.facts["rows"], separate.facts["parameter_sync_step"], separate.inner) == (32, 4, 4)
    numpy = {"ray_kwargs__ray_init__runtime_env__env_vars__VERL_DATAPROTO_SERIALIZATION_METHOD": "numpy"}
    assert build_requirements(V0, **numpy).facts["serialisation"] == "numpy"


@pytest.mark.parametrize(("value", "expected"), [("token", True), (None, False)])
def test_a_rollout_correction_is_a_fact(value: str | None, expected: bool) -> None:
    assert (
        build_requirements(SETTINGS, algorithm__rollout_correction__rollout_is=value).facts["rollout_correction"]
        is expected
    )
    assert "rollout_correction" not in build_requirements(SETTINGS).facts


def test_the_flags_name_only_the_resolved_steps() -> None:
    assert build_requirements(V0).build_settings("/d/replay", [4, 2]) == [
        "skip.rollout.enable=True",
        "skip.rollout.dump_dir=/d/replay",
        "'skip.rollout.steps=[2,4]'",
        "skip.rollout.action=cache",
    ]
    assert build_requirements(SETTINGS).build_settings("/d", [1])[0] == "skip.rollout_tq.enable=True"
    assert build_requirements(ASYNC).build_settings("/d", [1])[0] == "skip.async_rollout.enable=True"


def test_verl_0_8_gets_the_last_step_to_replay_and_no_validation() -> None:
    assert build_requirements(V2).build_settings("/d", [1, 2]) == [
        "actor_rollout_ref.rollout.skip.enable=True",
        "actor_rollout_ref.rollout.skip.dump_dir=/d",
        "actor_rollout_ref.rollout.skip.max_dump_step=2",
        "actor_rollout_ref.rollout.skip.action=cache",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
    ]
    assert "steps 1 to 2" in build_requirements(V2).build_notes([3], moved=False)[0]


@pytest.mark.parametrize("root", ["/a b/c", "/it's", '/say "hi"', "/a=b", "/x,y", "/日本"])
def test_the_flags_are_quoted_for_a_shell_and_parsed_unchanged(root: str) -> None:
    words = [word for flag in build_requirements(V0).build_settings(root, [1]) for word in shlex.split(flag)]
    result = load.parse_overrides(words)["skip.rollout.dump_dir"]
    assert result.replace('\\"', '"') == root


def test_a_step_has_the_files_of_its_trainer_with_the_marker_last() -> None:
    assert build_requirements(V0).select_files("rollout", {"meta.json", "gen_batch.dp", "new_batch.dp"}) == [
        "gen_batch.dp",
        "meta.json",
    ]
    assert build_requirements(SETTINGS).select_files("rollout_tq", {"0/meta.json", "0/tq_batch.pt"}) == [
        "0/tq_batch.pt",
        "0/meta.json",
    ]
    assert (
        build_requirements(V2).select_files("rollout", {"new_batch.dp", "meta.json", "gen_batch.dp"})[-1] == "meta.json"
    )


@pytest.mark.parametrize(
    ("config", "role", "files", "reason"),
    [
        (
            V0,
            "rollout_tq",
            {"0/tq_batch.pt", "0/meta.json"},
            "rollout_tq dump of the V1 trainer.*V0 trainer reads",
        ),
        (
            SETTINGS,
            "rollout",
            {"gen_batch.dp", "meta.json"},
            "of the V0 trainer; this run's V1 trainer reads rollout_tq",
        ),
        (V0, "async_rollout", {"gen_batch.dp", "meta.json"}, "of the fully async trainer"),
        (V0, "rollout", {"gen_batch.dp"}, "has no meta.json"),
        (
            SETTINGS,
            "rollout_tq",
            {f"{i}/{name}" for i in (0, 1) for name in ("tq_batch.pt", "meta.json")},
            "another",
        ),
        (V2, "rollout", {"gen_batch.dp", "meta.json"}, "verl 0.8 needs new_batch.dp as well"),
    ],
)
def test_files_that_a_trainer_cannot_load_are_refused_with_the_reason(
    config: dict[str, Any], role: str, files: set[str], reason: str
) -> None:
    with pytest.raises(NotReplayableError, match=reason):
        read_requirements(config).select_files(role, files)


def test_fully_async_moves_the_prompts_of_a_step_by_the_prompts_of_the_steps_between() -> None:
    assert build_requirements(V0).get_folder_number(3, "global_step", 3, 5) == 5
    result = build_requirements(ASYNC)  # 16 prompts per training step
    assert [result.get_folder_number(3, "global_step", prompt, 3) for prompt in (33, 47)] == [33, 47]
    assert [result.get_folder_number(3, "global_step", prompt, 5) for prompt in (33, 47)] == [65, 79]
    assert result.get_folder_number(4, "feed_index", 4, 9) == 9


def test_only_batches_of_v0_may_need_a_repair() -> None:
    assert [read_requirements(config).repairable_files for config in (V0, SETTINGS, ASYNC, V2)] == [
        ("gen_batch.dp",),
        (),
        (),
        (),
    ]


def test_v0_at_another_step_has_a_warning() -> None:
    assert (
        "at a step that is not the pinned one, or if rows are excluded"
        in build_requirements(V0).build_notes([2], moved=True)[0]
    )
    assert build_requirements(V0).build_notes([2], moved=False) == []
    assert (
        "warm-up"
        in build_requirements(SETTINGS, trainer__v1__trainer_mode="colocate_async").build_notes([1], moved=False)[0]
    )


def test_a_run_with_unknown_settings_has_the_shape_of_the_pinned_batch() -> None:
    shape = {"samples_per_prompt": 4, "max_prompt_length": 128, "max_response_length": 256, "prompts": 8}
    v0 = read_requirements(guess_settings("math", "next", {}, {"role": "rollout", **shape}))
    assert (v0.trainer, str(v0.folder)) == ("V0", "next_math/GBS8_N4_in128_out256")
    separate = read_requirements(
        guess_settings("math", "next", {}, {"role": "rollout_tq", "parameter_sync_step": 2, **shape})
    )
    assert (separate.trainer, separate.inner, separate.folder.name) == ("V1", 2, "GBS1_N4_in128_out256")
    fully_async = read_requirements(guess_settings("math", "next", {}, {"role": "async_rollout", **shape}))
    assert (fully_async.trainer, fully_async.folder.name) == ("fully async", "GBS1_N4_in128_out256")


def test_a_known_configuration_is_used_with_its_names() -> None:
    result = guess_settings("math", "next", {**V0, "data.gen_batch_size": 16}, {"role": "rollout_tq"})
    assert str(read_requirements(result).folder) == "grpo-2_math/GBS16_N4_in128_out256"
