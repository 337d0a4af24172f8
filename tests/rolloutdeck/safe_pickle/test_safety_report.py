"""The safety report: real dumps are readable and loadable, and hostile files are not loadable."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolloutdeck import safe_pickle as safe
from rolloutdeck.safe_pickle import SafetyReport
from rolloutdeck.safe_pickle.safety_report import check_source_safety
from rolloutdeck.safe_pickle.stream.source import ByteSource
from tests.rolloutdeck.safe_pickle import assembler as asm
from tests.rolloutdeck.safe_pickle.hostile import BENIGN, CORPUS, LIMITS, Case
from tests.rolloutdeck.safe_pickle.hostile.case import shorten_reason

DATA = Path(__file__).parents[2] / "data"
DUMPS = sorted(
    path
    for kind in ("verl_skip", "verl_tq", "verl_v2")
    for path in (DATA / kind).rglob("*.[dp][pt]")
    if "broken" not in str(path)
)
ROLL_BATCHES = sorted((DATA / "roll").rglob("*.pkl"))
CUT_STEP_BYTES = 997


def check_bytes(data: bytes) -> SafetyReport:
    return check_source_safety(ByteSource.from_bytes(data))


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: "/".join(path.parts[-6:]))
def test_a_dump_of_verl_is_readable_and_loadable_and_its_format_is_known(path: Path) -> None:
    assert safe.check_file_safety(path) == SafetyReport(True, True, (), path.stem)


@pytest.mark.parametrize("path", ROLL_BATCHES, ids=lambda path: path.name)
def test_a_batch_that_roll_loads_again_is_readable_and_loadable(path: Path) -> None:
    assert safe.check_file_safety(path) == SafetyReport(True, True, (), "roll-mock")


def test_the_hostile_dump_is_neither_readable_nor_loadable() -> None:
    result = safe.check_file_safety(next((DATA / "verl_skip" / "broken").rglob("5/gen_batch.dp")))
    assert (result.readable, result.loadable) == (False, False)
    assert "posix.system" in result.reasons[0]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (asm.proto(), "gen_batch"),
        (asm.proto(asm.bytes_(asm.torch_file(asm.NONE))), "new_batch"),
        (asm.proto(columns=asm.dict_(a=asm.object_array(asm.text("x"), asm.EMPTY_DICT))), "gen_batch"),
        (asm.archive(asm.queue_members()), "tq_batch"),
        (asm.roll_batch(), "roll-mock"),
        (asm.roll_batch(asm.buffer(asm.bytes_(asm.torch_file(asm.NONE)), asm.number(9))), "roll-mock"),
        (asm.torch_file(asm.dict_(x=asm.tensor(asm.storage(16), 16)), asm.BYTES), "torch"),
        (asm.torch_file(asm.dict_(x=asm.expanded_tensor(asm.storage(16), 1_000_000, 16)), asm.BYTES), "torch"),
    ],
)
def test_the_unchanged_parts_of_the_hostile_files_are_loadable(data: bytes, kind: str) -> None:
    assert check_bytes(data) == SafetyReport(True, True, (), kind)


@pytest.mark.parametrize("number", range(len(BENIGN)))
def test_the_objects_whose_attributes_the_hostile_files_change_are_loadable(number: int) -> None:
    assert check_bytes(BENIGN[number]).reasons == ()


@pytest.mark.parametrize("case", CORPUS.values(), ids=CORPUS)
def test_a_hostile_file_is_not_loadable_and_the_report_has_the_reason(case: Case) -> None:
    result = check_bytes(case.build())
    assert not result.loadable
    assert case.reason in map(shorten_reason, result.reasons)
    assert result.readable >= case.readable


@pytest.mark.parametrize("name", [name for name, case in LIMITS.items() if not case.readable])
def test_a_file_that_is_no_complete_pickle_is_not_readable(name: str) -> None:
    assert not check_bytes(LIMITS[name].build()).readable


def test_there_are_more_than_sixty_hostile_files() -> None:
    assert len({case.build() for case in CORPUS.values()}) >= 60


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: "/".join(path.parts[-6:]))
def test_a_dump_cut_short_anywhere_is_neither_readable_nor_loadable(path: Path) -> None:
    data = path.read_bytes()
    for end in range(0, len(data), CUT_STEP_BYTES):
        result = check_bytes(data[:end])
        assert not result.readable and not result.loadable and result.reasons, end


def test_a_batch_with_a_value_of_the_users_own_class_can_be_read_but_not_loaded() -> None:
    result = check_bytes(asm.proto(columns=asm.dict_(a=asm.object_array(asm.new_object("reward.Score")))))
    assert (result.readable, result.loadable, result.format) == (True, False, "gen_batch")
    assert result.reasons == ("it names 'reward.Score', which is not on the list of what such a file holds.",)


def test_the_number_of_reasons_is_limited() -> None:
    columns = {f"c{number}": asm.object_array(asm.call(f"evil.f{number}", asm.NONE)) for number in range(1000)}
    assert len(check_bytes(asm.proto(columns=asm.dict_(**columns))).reasons) == 8


def test_a_name_from_a_file_adds_no_control_characters_to_the_reason() -> None:
    result = check_bytes(asm.build_pickle(asm.text("o\ns") + asm.text("<b>\x1b[2J" + "x" * 40) + b"\x93"))
    assert "\n" not in result.reasons[0] and "\x1b" not in result.reasons[0]


def test_a_missing_file_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        safe.check_file_safety(tmp_path / "gen_batch.dp")
