"""Where slime's own function would need SGLang, its contract tests' reference generates what is not replayed, and
normalises rewards."""

from __future__ import annotations

from rolloutdeck.trainers.slime.plugin import guidance, replay

replay.DEFAULT_ROLLOUT_FUNCTION = "plugin_contracts.test_plugin_rollout_contracts.valid_rollout_function"


def normalize_like_contract(args, samples):  # type: ignore[no-untyped-def]
    from plugin_contracts.test_plugin_runtime_hook_contracts import reference_reward_post_process

    return reference_reward_post_process(args, samples)


guidance._normalize_like_slime = normalize_like_contract
