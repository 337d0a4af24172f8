"""Names and texts of other people in the output of commands."""

from __future__ import annotations

from rolloutdeck.cli.common.terminal import clean_line, remove_control_characters


def test_a_name_cannot_begin_a_new_line_or_change_the_terminal() -> None:
    assert clean_line("math\n  gsm8k: 999 of 999\t\x1b[2J") == "math\ufffd  gsm8k: 999 of 999\ufffd\ufffd[2J"
    assert clean_line(4) == "4"


def test_a_text_keeps_its_lines_and_joiners_and_loses_direction_controls() -> None:
    assert remove_control_characters("a\n\tb\u202ec \U0001f469\u200d\U0001f680\r") == "a\n\tb\ufffdc 👩‍🚀\ufffd"
