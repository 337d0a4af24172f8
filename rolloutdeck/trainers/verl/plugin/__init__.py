"""Rolloutdeck's plug-in for verl 0.9 and newer; installed by `rolloutdeck.trainers.verl`, which verl imports.

Depends on: `rolloutdeck.trainers.common`, `rolloutdeck.client`, `rolloutdeck.replay` and `rolloutdeck.safe_pickle`.
Invariant: nothing raises into the training, except if a replay plan stops the run.

verl imports it at the end of `import verl`, in every process: by the entry point group `verl.plugins`, by
VERL_USE_EXTERNAL_MODULES or by `actor_rollout_ref.model.external_lib`. verl hides errors of plug-ins, so this one logs
what it could not patch. Nothing is recorded unless `trainer.logger` names `rolloutdeck`. Names of verl are those
of 0.9.1.
"""

from __future__ import annotations

import os

from rolloutdeck.lib import logger
from rolloutdeck.trainers.common import patch_when_imported

__all__ = ["install_plugin"]

# Module of verl -> module here whose `patch(module)` patches it; imported only after the module of verl.
PATCHES = {
    "verl.utils.tracking": "metrics",
    "verl.utils.skip.skip_manager": "rollout_skip",
    "verl.trainer.ppo.ray_trainer": "trainer_v0",
    "verl.experimental.separation.ray_trainer": "trainer_async",
    "verl.experimental.one_step_off_policy.ray_trainer": "async_fit",
    "verl.experimental.fully_async_policy.fully_async_trainer": "async_fit",
    "verl.experimental.fully_async_policy.fully_async_rollouter": "dataset_fields",
    "verl.trainer.ppo.v1.trainer_base": "trainer_v1",
    "verl.trainer.ppo.v1.replay_buffer": "evictions",
}

_installed = False


def install_plugin() -> None:
    """Patches the modules that verl has imported and will import. May be called repeatedly; is fast; never raises."""
    global _installed
    if _installed:
        return
    _installed = True
    try:
        for verl_module, patch_module in PATCHES.items():
            patch_when_imported(verl_module, f"{__name__}.{patch_module}")
    except Exception as error:
        logger.warning("Rolloutdeck's verl plug-in could not be installed, nothing will be recorded: %s", error)
        return
    logger.debug("Rolloutdeck's verl plug-in is installed in process %d.", os.getpid())
