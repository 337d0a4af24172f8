"""Real `compute_advantage` of verl with each of its estimators, and with one that no version of verl has.

Six rows of two prompts, whose scores are 1 to 6; the rules mask the second row and the last two. For each estimator,
argv[1]/found.json has the advantages without us, with the rules, and of a batch that has only the other rows.

In the mood `resampled` (argv[2]) verl draws the rows of the batch again (`use_pf_ppo`), and a plan masks the third row.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from omegaconf import OmegaConf
from stubs import TOKENIZER, build_config, build_generated_batch, compute_log_probs, wait_for_rules
from verl.trainer.ppo import core_algos, ray_trainer

from rolloutdeck.trainers.verl.plugin import masked_rows, trainer_v0

into, mood = Path(sys.argv[1]), sys.argv[2]
OTHERS = [0, 2, 3]  # the rows that no rule selects


@core_algos.register_adv_est("own")
def compute_own_advantage(token_level_rewards, response_mask, index, **_):
    if len(set(index)) != 2:
        raise ValueError("there must be two groups")
    scores = token_level_rewards.sum(-1, keepdim=True) * response_mask
    return scores, scores


def build_batch(estimator):
    asked = [f"What is {number} plus 1 ?" for number in (0, 0, 0, 1, 1, 1)]
    result = build_generated_batch(asked, ["sum is 1", "wrong 2", "wrong 3", "sum is 2", "wrong 4", "wrong 5"])
    scores = torch.zeros_like(result.batch["rm_scores"])
    scores[:, 2 if mood == "resampled" else 1] = torch.arange(1.0, 7.0)
    result.batch["token_level_scores"] = result.batch["token_level_rewards"] = scores
    result.batch["values"] = result.batch["old_log_probs"] = compute_log_probs(result.batch["responses"])
    result.batch["sum_pi_squared"] = torch.ones_like(scores) / 2
    if estimator == "remax":
        result.batch["reward_baselines"] = torch.ones(6)
    result.non_tensor_batch["points"] = np.arange(1.0, 7.0)
    result.non_tensor_batch["uid"] = np.array([f"u-{text}" for text in asked], dtype=object)
    return result


def compute(settings, data):
    torch.manual_seed(1)
    settings = settings.algorithm
    return ray_trainer.compute_advantage(data, adv_estimator=settings.adv_estimator, config=settings)


def describe(result):
    return {
        "advantages": [row[0] for row in result.batch["advantages"].tolist()],
        "responses": [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in result.batch["responses"]],
        "uids": result.non_tensor_batch["uid"].tolist(),
        "columns": sorted(result.non_tensor_batch),
    }


def run_estimator(estimator):
    settings = build_config()
    more = {"adv_estimator": estimator, "gdpo_reward_keys": ["points"], "use_pf_ppo": mood == "resampled"}
    more["pf_ppo"] = {"reweight_method": "max_random", "weight_pow": 2.0}
    settings.algorithm = OmegaConf.merge(settings.algorithm, more)
    trainer = SimpleNamespace(config=settings, tokenizer=TOKENIZER, global_steps=1)
    wait_for_rules(settings)
    data = build_batch(estimator)
    if mood == "resampled":
        data.non_tensor_batch[masked_rows.MASKED_TAG] = np.array([row == 2 for row in range(6)], dtype=object)
    with trainer_v0.follow_guidance(trainer):
        guided = describe(compute(settings, data))
    found = {"plain": describe(compute(settings, build_batch(estimator))), "guided": guided}
    if estimator not in ("own", "grpo_passk"):
        found["others"] = describe(compute(settings, build_batch(estimator).select_idxs(OTHERS)))
    return found


names = ["gae"] if mood == "resampled" else [*(name.value for name in core_algos.AdvantageEstimator), "own"]
(into / "found.json").write_text(json.dumps({name: run_estimator(name) for name in names}))
