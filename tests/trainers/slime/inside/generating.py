"""Where slime's own function would need SGLang, its contract tests' reference generates what is not replayed."""

from __future__ import annotations

from rolloutdeck.trainers.slime.plugin import replay

replay.DEFAULT_ROLLOUT_FUNCTION = "plugin_contracts.test_plugin_rollout_contracts.valid_rollout_function"
