from __future__ import annotations

from pathlib import Path

import pytest

from rolloutdeck import safe_pickle as safe
from rolloutdeck.safe_pickle import SafetyReport
from rolloutdeck.safe_pickle.safety_report import check_source_safety
from rolloutdeck.safe_pickle.stream.source import ByteSource
from tests.rolloutdeck.safe_pickle import assembler as made
from tests.rolloutdeck.safe_pickle.hostile import BENIGN, CORPUS, LIMITS, Case
from tests.rolloutdeck.safe_pickle.hostile.case import shorten_reason

DATA = Path(__file__).parents[2] / "data"
DUMPS = sorted(
    path
    for kind in ("verl_skip", "verl_tq", "verl_v2")
    for path in (DATA / kind).rglob("*.[dp][pt]")
    if "broken" not in str(path)
)
OF_ROLL = sorted((DATA / "roll").rglob("*.pkl"))
EVERY = 997  # bytes


def check_bytes(data: bytes) -> SafetyReport:
    return check_source_safety(ByteSource.from_bytes(data))


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: "/".join(path.parts[-6:]))
def test_a_dump_of_verl_is_readable_and_loadable_and_its_format_is_known(path: Path) -> None:
    assert safe.check_file_safety(path) == SafetyReport(True, True, (), path.stem)


@pytest.mark.parametrize("path", OF_ROLL, ids=lambda path: path.name)
def test_a_batch_that_roll_loads_again_is_readable_and_loadable(path: Path) -> None:
    assert safe.check_file_safety(path) == SafetyReport(True, True, (), "roll-mock")


def test_the_hostile_dump_is_neither() -> None:
    result = safe.check_file_safety(next((DATA / "verl_skip" / "broken").rglob("5/gen_batch.dp")))
    assert (result.readable, result.loadable) == (False, False)
    assert "posix.system" in result.reasons[0]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (made.proto(), "gen_batch"),
        (made.proto(made.data(made.saved(made.NONE))), "new_batch"),
        (made.proto(columns=made.mapped(a=made.objects(made.text("x"), made.EMPTY_DICT))), "gen_batch"),
        (made.archive(made.queued()), "tq_batch"),
        (made.rollout(), "roll-mock"),
        (made.rollout(made.buffer(made.data(made.saved(made.NONE)), made.number(9))), "roll-mock"),
        (made.saved(made.mapped(x=made.tensor(made.storage(16), 16)), made.BYTES), "torch"),
        (made.saved(made.mapped(x=made.expanded(made.storage(16), 1_000_000, 16)), made.BYTES), "torch"),
    ],
)
def test_what_the_hostile_files_are_made_of_is_loadable(data: bytes, kind: str) -> None:
    assert check_bytes(data) == SafetyReport(True, True, (), kind)


@pytest.mark.parametrize("number", range(len(BENIGN)))
def test_the_objects_whose_attributes_the_hostile_files_change_are_loadable(number: int) -> None:
    assert check_bytes(BENIGN[number]).reasons == ()


@pytest.mark.parametrize("case", CORPUS.values(), ids=CORPUS)
def test_a_hostile_file_is_not_loadable_and_the_verdict_says_why(case: Case) -> None:
    result = check_bytes(case.build())
    assert not result.loadable
    assert case.reason in map(shorten_reason, result.reasons)
    assert result.readable >= case.readable


@pytest.mark.parametrize("name", [name for name, case in LIMITS.items() if not case.readable])
def test_a_file_that_is_no_whole_pickle_is_not_even_readable(name: str) -> None:
    assert not check_bytes(LIMITS[name].build()).readable


def test_there_are_more_than_sixty_hostile_files() -> None:
    assert len({case.build() for case in CORPUS.values()}) >= 60


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: "/".join(path.parts[-6:]))
def test_a_dump_cut_short_anywhere_is_neither_readable_nor_loadable(path: Path) -> None:
    data = path.read_bytes()
    for end in range(0, len(data), EVERY):
        result = check_bytes(data[:end])
        assert not result.readable and not result.loadable and result.reasons, end


def test_a_batch_with_a_value_of_the_users_own_class_can_be_read_but_not_loaded() -> None:
    result = check_bytes(made.proto(columns=made.mapped(a=made.objects(made.new("reward.Score")))))
    assert (result.readable, result.loadable, result.format) == (True, False, "gen_batch")
    assert result.reasons == ("it names 'reward.Score', which is not on the list of what such a file holds.",)


def test_one_fault_is_one_reason_and_a_thousand_are_a_few() -> None:
    columns = {f"c{number}": made.objects(made.call(f"evil.f{number}", made.NONE)) for number in range(1000)}
    assert len(check_bytes(made.proto(columns=made.mapped(**columns))).reasons) == 8


def test_a_name_from_a_file_cannot_garble_the_reason() -> None:
    result = check_bytes(made.pickled(made.text("o\ns") + made.text("<b>\x1b[2J" + "x" * 40) + b"\x93"))
    assert "\n" not in result.reasons[0] and "\x1b" not in result.reasons[0]


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        safe.check_file_safety(tmp_path / "gen_batch.dp")
