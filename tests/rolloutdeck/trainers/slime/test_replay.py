"""`generate_rollout` with pins of slime's own dumps, against the real server."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.client import start
from rolloutdeck.client.upload import dispatcher
from rolloutdeck.errors import NotReplayableError
from rolloutdeck.lib import RunClient, download
from rolloutdeck.lib.http import ServerResponse
from rolloutdeck.replay.plan import PinnedArtifact, PlanEntry
from rolloutdeck.safe_pickle.rewrite.mask import write_plain_archive
from rolloutdeck.trainers import slime
from rolloutdeck.trainers.common import patching, plan_request
from rolloutdeck.trainers.common import session as common_session
from rolloutdeck.trainers.slime.plugin import replay
from rollouts.models import Project, Replay, Run, Sample
from tests.dashboard.support.asgi_server import Site
from tests.rolloutdeck.replay.pull.imported import build_command_runner, flag_samples, import_folder, pin_step
from tests.rolloutdeck.replay.pull.plans import save_plan
from tests.rolloutdeck.support import fake_slime
from tests.rolloutdeck.support.fake_server import wait_until
from tests.rolloutdeck.support.fake_slime import Prompts, arguments, load_dump

pytestmark = pytest.mark.django_db(transaction=True)

RunRollout = Callable[..., Any]


@pytest.fixture
def run_rollout(
    site: Site, secret: str, project: Project, node: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunRollout]:
    """Returns a function that runs a rollout of a run with the default plan, and returns its samples or the eval."""
    (node / "dumps").mkdir()
    for name in ("0.pt", "2.pt"):
        shutil.copy(fake_slime.DATA / name, node / "dumps")
    import_folder(build_command_runner(site, secret, node, "slime"), node / "dumps")
    for name, module in fake_slime.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("ROLLOUTDECK_PLAN", "default")
    for owner, name in (
        (download, "FIRST_RETRY_SECONDS"),
        (dispatcher, "MIN_BACKOFF_SECONDS"),
        (dispatcher, "MAX_BACKOFF_SECONDS"),
        (dispatcher, "ACTION_REQUIRED_PAUSE"),
    ):
        monkeypatch.setattr(owner, name, 0.05)
    common_session._sessions.clear()
    replay._requests.clear()
    source = Prompts()

    def call_replay(step: int, evaluation: bool = False, **options: Any) -> Any:
        args = arguments(rolloutdeck_rollout_function_path="tests.rolloutdeck.support.fake_slime.generate", **options)
        result = slime.generate_rollout(args, step, source, evaluation=evaluation)
        return (
            result
            if evaluation
            else [sample.to_dict() for sample in result.samples]
            if is_replayed(result)
            else source.count
        )

    yield call_replay
    for item in common_session._sessions.values():
        item.run.finish(timeout=0)
    common_session._sessions.clear()
    start._runs.clear()


def is_replayed(result: Any) -> bool:
    """A replayed rollout is a flat list of samples, as slime's own loader returns it."""
    return isinstance(result.samples[0], fake_slime.Sample)


def list_outcomes() -> list[tuple[int, str]]:
    rows = Replay.objects.filter(run__name="grpo").order_by("step")
    assert {(row.step_kind, row.pin_id is None) for row in rows} <= {("rollout_id", False)}
    return [(row.step, row.outcome) for row in rows]


def wait_for_reason(step: int) -> str:
    wait_until(lambda: Replay.objects.filter(run__name="grpo", step=step))
    return Replay.objects.get(run__name="grpo", step=step).reason


def pin_rollout(step: int, by: User) -> Any:
    return pin_step(step, by, step_kind="rollout_id")


def test_a_pinned_rollout_is_replayed_and_takes_the_prompts_that_it_would_have_used(
    run_rollout: RunRollout, owner: User
) -> None:
    save_plan(owner, (pin_rollout(2, owner), 1))
    assert run_rollout(0) == 8
    assert run_rollout(1) == load_dump("2.pt")
    assert run_rollout(2) == 24  # 8 prompts were taken for each of three rollouts
    assert run_rollout(1, evaluation=True) == "an eval"
    wait_until(list_outcomes)
    assert list_outcomes() == [(1, "hit")]


def test_a_server_that_does_not_respond_at_the_start_is_asked_again(
    run_rollout: RunRollout, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_plan(owner, (pin_rollout(0, owner), 0), (pin_rollout(2, owner), 2))
    monkeypatch.setattr(plan_request, "PAUSE_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(RunClient, "request", lambda *_, **__: ServerResponse(503, {}, b"", True))
        assert run_rollout(0) == 8
    assert run_rollout(2) == load_dump("2.pt")


def test_no_server_is_asked_if_no_plan_is_requested(
    run_rollout: RunRollout, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_plan(owner, (pin_rollout(0, owner), 0))
    monkeypatch.delenv("ROLLOUTDECK_PLAN")
    assert run_rollout(0) == 8 and not common_session._sessions and not Run.objects.filter(name="grpo").exists()


def test_flagged_samples_are_replayed_at_their_position_without_weight(run_rollout: RunRollout, owner: User) -> None:
    save_plan(owner, (pin_rollout(0, owner), 0), on_selected="exclude")
    flagged_samples = Sample.objects.filter(step__run__name="old", step__step=0, ordinal__in=(3, 17), visible=True)
    flag_samples(owner, *flagged_samples)
    result, pinned_rows = run_rollout(0), load_dump("0.pt")
    for position in (3, 17):
        pinned_rows[position]["remove_sample"] = True
    assert result == pinned_rows
    assert wait_for_reason(0) == "2 flagged samples have no weight (remove_sample)"


def test_flagged_samples_keep_their_weight_if_the_plan_does_not_exclude_them(
    run_rollout: RunRollout, owner: User
) -> None:
    save_plan(owner, (pin_rollout(0, owner), 0))
    flag_samples(owner, Sample.objects.filter(step__run__name="old", step__step=0, visible=True)[0])
    assert run_rollout(0) == load_dump("0.pt")


def test_a_rollout_of_another_shape_is_refused_and_generated(run_rollout: RunRollout, owner: User) -> None:
    save_plan(owner, (pin_rollout(0, owner), 0))
    assert run_rollout(0, n_samples_per_prompt=2) == 8
    assert "rows: 32 pinned, 16 requested" in wait_for_reason(0) and list_outcomes() == [(0, "refused")]


def test_a_rollout_without_the_tokens_of_top_p_that_the_run_needs_is_generated(
    run_rollout: RunRollout, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in replay.TOP_P_KEYS:
        monkeypatch.setattr(fake_slime.Sample, name, None, raising=False)
    save_plan(owner, (pin_rollout(0, owner), 0), (pin_rollout(0, owner), 1))
    assert run_rollout(0, rollout_top_p=0.95) == 8
    missing = "its samples have no rollout_top_p_token_ids, rollout_top_p_token_offsets, which --rollout-top-p 0.95"
    assert wait_for_reason(0) == f"{missing} of this run needs"
    assert run_rollout(1, rollout_top_p=1.0) == load_dump("0.pt")
    wait_until(lambda: len(list_outcomes()) == 2)
    assert list_outcomes() == [(0, "refused"), (1, "hit")]


def test_samples_need_tokens_of_top_p_only_where_slime_converts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = fake_slime.read_samples("0.pt")
    replay.check_top_p_tokens(arguments(rollout_top_p=0.95), samples)  # an older slime, whose class has no such field
    for name in replay.TOP_P_KEYS:
        monkeypatch.setattr(fake_slime.Sample, name, None, raising=False)
    for options in ({"custom_convert_samples_to_train_data_path": "a.b"}, {"debug_rollout_only": True}):
        replay.check_top_p_tokens(arguments(rollout_top_p=0.95, **options), samples)
    for sample in samples:
        vars(sample).update(dict.fromkeys(replay.TOP_P_KEYS, [1]))
    replay.check_top_p_tokens(arguments(rollout_top_p=0.95), samples)
    samples[3].rollout_top_p_token_ids = None
    with pytest.raises(NotReplayableError, match="have no rollout_top_p_token_ids, which --rollout-top-p 0.95"):
        replay.check_top_p_tokens(arguments(rollout_top_p=0.95), samples)


def test_only_a_plan_that_says_stop_raises_an_error(run_rollout: RunRollout, owner: User) -> None:
    save_plan(owner, (pin_rollout(0, owner), 0), on_mismatch="stop")
    with pytest.raises(patching.ReplayStoppedError, match=r"default@1 says to stop .* Rollout 0: prompts: 8 pinned"):
        run_rollout(0, n_samples_per_prompt=2, rollout_batch_size=16)


def test_a_rollout_is_generated_if_the_server_is_down_during_the_download(
    run_rollout: RunRollout, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_plan(owner, (pin_rollout(0, owner), 0), (pin_rollout(2, owner), 1), (pin_rollout(2, owner), 2))
    assert run_rollout(0) == load_dump("0.pt")
    address = common_session.Settings.from_environment().url
    monkeypatch.setenv("ROLLOUTDECK_URL", "http://127.0.0.1:1")
    assert run_rollout(1) == 16
    monkeypatch.setenv("ROLLOUTDECK_URL", address)
    assert run_rollout(2) == load_dump("2.pt")
    wait_until(lambda: len(list_outcomes()) == 3)
    assert list_outcomes() == [(0, "hit"), (1, "miss"), (2, "hit")]


def test_as_many_prompts_are_skipped_as_slime_takes_and_partial_groups_are_returned() -> None:
    """With `--over-sampling-batch-size` and `--partial-rollout`."""
    prompts = Prompts()
    partial_group = [fake_slime.Sample(group_index=9, prompt="begun", tokens=[1, 2])]
    returned: list[Any] = []
    source = SimpleNamespace(
        get_samples=lambda groups: [partial_group, *prompts.get_samples(groups - 1)], add_samples=returned.extend
    )
    replay.skip_prompts(SimpleNamespace(rollout_batch_size=4, over_sampling_batch_size=8), source)
    assert (prompts.count, returned) == (7, [partial_group])


def test_a_data_source_without_get_samples_does_not_stop_the_replay(
    run_rollout: RunRollout, owner: User, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_plan(owner, (pin_rollout(0, owner), 0))
    monkeypatch.delattr(Prompts, "get_samples")
    assert run_rollout(0) == load_dump("0.pt") and "lost something in replay.skip_prompts" in caplog.text


def build_entry(names: tuple[str, ...] = ("0.pt",), **options: Any) -> PlanEntry:
    files = {name: {"sha256": "0" * 64, "bytes": 1} for name in names}
    full, selected = bool(options.pop("whole", False)), options.pop("found", {})
    artifact = PinnedArtifact("a", "rollout", 0, files, is_fully_selected=full, selected=selected)
    return PlanEntry(0, 1, options, (artifact,))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"flagged": 2, "unplaced": 1}, "1 of its flagged samples can't be found"),
        ({"flagged": 2}, "2 of its flagged samples can't be found"),
        ({"flagged": 2, "unplaced": 0, "whole": True}, "all its samples are flagged"),
        ({"names": ("0.pt", "1.pt")}, "the pin has 2 rollout files of slime"),
        ({"names": ("gen_batch.dp",)}, "the pin has 0 rollout files of slime"),
    ],
)
def test_a_pin_without_known_positions_of_its_flagged_samples_is_not_replayed(
    fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotReplayableError, match=reason):
        replay.find_selected_samples(build_entry(**fields))
    assert replay.find_selected_samples(build_entry(flagged=2, unplaced=0, found={"0.pt": [1, 5]})) == [1, 5]


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ([1], "its sample 1 is not a dict"),
        ({"tokens": [1], "response_length": 1, "status": "completed", "reward": None}, "its sample 1 has no reward"),
        ({"response_length": 1, "status": "completed", "reward": 0.0}, "its sample 1 has no tokens"),
        ({"multimodal_inputs": {"images": [1]}}, "its samples have multimodal_inputs, which can't be rebuilt"),
    ],
)
def test_a_rollout_with_a_sample_that_cannot_be_rebuilt_is_not_replayed(
    tmp_path: Path, sample: Any, reason: str
) -> None:
    good = {"tokens": [1, 2], "response_length": 1, "status": "completed", "reward": 0.0}
    with (tmp_path / "0.pt").open("wb") as file:
        write_plain_archive({"samples": [good, {**good, **sample} if "multimodal_inputs" in sample else sample]}, file)
    with pytest.raises(NotReplayableError, match=reason):
        replay.read_rollout_samples(tmp_path / "0.pt")


def test_the_error_names_a_value_that_is_not_plain_even_if_it_is_nested(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    good = {"tokens": [1, 2], "response_length": 1, "status": "completed", "reward": 0.0}
    torch.save({"samples": [{**good, "metadata": {"deep": [{"path": Path("x")}]}}]}, tmp_path / "0.pt")
    with pytest.raises(NotReplayableError, match=r"its sample 0 has .*Path.*, which can't be rebuilt"):
        replay.read_rollout_samples(tmp_path / "0.pt")
    torch.save({"samples": []}, tmp_path / "1.pt")
    with pytest.raises(NotReplayableError, match="its file has no samples"):
        replay.read_rollout_samples(tmp_path / "1.pt")


def test_the_function_that_generates_is_slimes_own_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "DEFAULT_ROLLOUT_FUNCTION", "tests.rolloutdeck.support.fake_slime.generate")
    assert replay.load_rollout_function(arguments()) is fake_slime.generate
    named = arguments(rolloutdeck_rollout_function_path="tests.rolloutdeck.support.fake_slime.arguments")
    assert replay.load_rollout_function(named) is fake_slime.arguments
