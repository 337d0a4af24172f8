"""Whether a training follows the guidance rules."""

from __future__ import annotations

import pytest

from rolloutdeck.trainers.common import follows_guidance, patching
from tests.support.patching import patch_everywhere


def test_an_invalid_setting_means_off_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    patch_everywhere(monkeypatch, patching, "once_logger", patching.OnceLogger())
    monkeypatch.setenv("ROLLOUTDECK_GUIDANCE", "maybe")
    assert [follows_guidance() for _ in range(3)] == [False] * 3  # slime asks for each sample
    assert caplog.text.count("ROLLOUTDECK_GUIDANCE must be on or off, not 'maybe'.") == 1
