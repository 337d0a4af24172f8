"""Real `fit()` of verl's V1 trainer over a real TransferQueue; what the queue held at each update goes to argv[1].

It is the synchronous one, `colocate_async` or `separate_async`, as `trainer.v1.trainer_mode` says.

argv[2] is a mood: `filter` lets verl drop groups whose rewards are all the same (every second prompt's are),
`colocated` has a reward model score the batches after they were sampled, in `other` the model says something else. What
follows overrides the configuration: `skip.rollout_tq.enable=true`. It makes STEPS steps, else two.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from stubs import TOKENIZER, build_config, build_prompts, compute_log_probs, limit_disk, wait_for_rules
from verl.utils.tensordict_utils import get_tensordict, list_of_dict_to_tensordict

into, mood, overrides = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
seen = []


class AgentLoopManager:
    """Stands in for the agent loop manager: puts into the queue what verl's workers put there, in their form.

    A validation answer has two outputs, as of an agent that calls a tool. Rows come in the reverse order.
    """

    def generate_sequences(self, batch):
        validate = "validate" in batch.keys()  # noqa: SIM118 - of a TensorDict, whose values are its rows
        partition, n = ("val", 1) if validate else ("train", 2)
        keys, fields, tags = [], [], []
        for position, uid in enumerate(batch["uid"]):
            requested = batch["raw_prompt"][position][0]["content"]
            for session in range(n):
                message = self.build_answers(int(requested.split()[2]), session, validate)
                for output, text in enumerate(message):
                    keys.append(f"{uid}_{session}_{output}")
                    fields.append(self.build_fields(batch, position, session, requested, text, message[-1]))
                    size = len(fields[-1]["responses"])
                    tags.append({"status": "success", "prompt_len": 6, "response_len": size, "seq_len": 6 + size})
        for tag in tags:
            tag.update(global_steps=batch["global_steps"], min_global_steps=3, max_global_steps=4)
        data = list_of_dict_to_tensordict(fields[::-1])
        tq.kv_batch_put(keys=keys[::-1], fields=data, tags=tags[::-1], partition_id=partition)
        finished = [{"is_prompt": True, "status": "finished", "global_steps": batch["global_steps"]}] * len(batch)
        tq.kv_batch_put(keys=list(batch["uid"]), partition_id=partition, tags=finished)

    def build_answers(self, number, session, validate):
        if validate:
            return ["What is", f"sum is {number + 1}"]
        same = mood == "filter" and number % 2 == 0
        more = " plus" if mood == "other" else ""
        return [f"sum is {number + 1}{more}" if session == 0 or same else f"wrong {number + 2}"]

    def build_fields(self, batch, place, session, asked, text, final):
        prompt = torch.tensor(TOKENIZER.encode(asked, add_special_tokens=False))
        response = torch.tensor(TOKENIZER.encode(text, add_special_tokens=False))
        right = final.startswith("sum")
        scores = torch.zeros(len(response))
        scores[-1] = float(right)
        extras = {"reward_extra_info": {"acc": right, "pred": final}, "min_global_steps": 3, "max_global_steps": 4}
        created = {
            "prompts": prompt,
            "responses": response,
            "response_mask": torch.ones_like(response),
            "loss_mask": torch.ones_like(response),
            "input_ids": torch.cat([prompt, response]),
            "position_ids": torch.arange(len(prompt) + len(response)),
            "uid": batch["uid"][place],
            "session_id": session,
            "num_turns": 2,
            "extra_fields": extras,
            **({} if mood == "colocated" else {"rm_scores": scores}),
        }
        return {
            **created,
            **{name: batch[name][place] for name in ("reward_model", "data_source", "extra_info", "raw_prompt")},
        }


class Actor:
    """Stands in for the workers with the weights."""

    _dispatch_info = {"actor": [0]}

    def compute_log_prob(self, batch):
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["input_ids"])
        # verl takes the log-prob of a token from the place before it.
        matches = [compute_log_probs(ids.roll(-1)) for ids in data["input_ids"].unbind()]
        nested = torch.nested.as_nested_tensor(matches, layout=torch.jagged)
        fields = get_tensordict({"log_probs": nested, "entropy": nested * 0 + 1})
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        return batch

    def save_model_to_cpu(self, number):
        """`separate_async` computes log-probs of all updates of a step with the weights that it began with."""

    restore_model_from_cpu = clear_cpu_model = save_model_to_cpu

    def update_actor(self, batch):
        names = ["responses", "response_mask", "old_log_probs", "advantages"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        columns = {name: [item.tolist() for item in data[name].unbind()] for name in names}
        rows = [{name: columns[name][position] for name in names} for position in range(len(batch.keys))]
        seen.append(dict(zip(batch.keys, rows, strict=True)))
        return {"metrics": {"mfu": [0.5], "pg_loss": [0.5]}}


class RewardModel:
    """Stands in for a colocated reward model: half a point for the answers that begin with `sum`."""

    reward_loop_worker_handles = None

    def compute_rm_score(self, batch):
        responses = batch.batch["responses"]
        scores = torch.zeros(responses.shape)
        scores[:, 0] = (responses[:, 0] == TOKENIZER.convert_tokens_to_ids("sum")).float() / 2
        return SimpleNamespace(batch={"rm_scores": scores}, meta_info={}, non_tensor_batch={})


def read_config():
    result = build_config(
        use_v1=True,
        validation_data_dir=str(into / "val"),
        rollout_data_dir=str(into / "rollout"),
        v1={
            "trainer_mode": "sync",
            "sync": {"parameter_sync_step": 1},
            "colocate_async": {"parameter_sync_step": 1, "num_warmup_batches": 1},
            "separate_async": {"parameter_sync_step": 2, "num_warmup_batches": 1},
            "sampler": {
                "custom_sampler": None, "max_off_policy_threshold": 8, "max_off_policy_strategy": "drop",
                "sampler_kwargs": {},
            },
        },
    )  # fmt: skip
    result.algorithm.filter_groups = {"enable": mood == "filter", "metric": "reward", "max_inflight_gen_batches": 1}
    result.reward = {"reward_model": {"enable": False, "enable_resource_pool": False}}
    result.actor_rollout_ref.rollout.update({"nnodes": 1, "n_gpus_per_node": 1})
    result.actor_rollout_ref.actor.ppo_mini_batch_size = 3  # six rows: verl fills up a batch of four
    result.actor_rollout_ref.actor.update(
        {"ppo_epochs": 1, "data_loader_seed": 1, "shuffle": False, "calculate_entropy": False, "entropy_coeff": 0.0}
    )
    if mood == "filter":
        result.data.gen_batch_size = 1
    return OmegaConf.merge(result, OmegaConf.from_dotlist(overrides))


def build_batches(size):
    """The data loader: prompts 0, 1, 2, ... in batches; one at a time where verl refills by single prompts."""
    return [build_prompts(first, size, "train") for first in range(0, 24, size)]


class Server:
    """Stands in for what starts, stops and updates the engines."""

    def __getattr__(self, name):
        return lambda *_, **__: None


def main():
    from verl.trainer.ppo.v1 import trainer_separate_async
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer, get_trainer_cls

    mode = (settings := read_config()).trainer.v1.trainer_mode

    class Trainer(get_trainer_cls(mode)):
        """Without workers: only what needs a GPU is another."""

        def __init__(self, configuration):
            self.config, self.tokenizer = configuration, TOKENIZER
            self.total_training_steps = int(os.environ.get("STEPS", "2"))
            self.use_critic = self.use_reference_policy = self.use_teacher_policy = self.ref_in_actor = False
            self.trainer_mode, self.parameter_sync_step = mode, configuration.trainer.v1[mode].parameter_sync_step
            self.local_trigger_step = self._restored_tq_prompt_count = self.global_steps = 0
            self.replay_buffer = self._build_replay_buffer()
            self.replay_buffer.poll_interval = 0.05
            self.checkpoint_manager = self.standalone_checkpoint_manager = Server()
            self._enable_hybrid_replicas = False
            self.hybrid_rollout_config = SimpleNamespace(enable_switch=False)
            self.current_mode = trainer_separate_async.HybridEngineMode.TRAINER
            self.actor_rollout_wg = Actor()
            self.reward_loop_manager = (
                RewardModel() if mood == "colocated" else SimpleNamespace(reward_loop_worker_handles=[1])
            )
            self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
            self._rollout_moe_lb_metrics_accumulator = None
            self.train_dataloader, self.train_dataloader_it = build_batches(1 if mood == "filter" else 2), None
            self.val_dataloader = [build_prompts(10, 2, "test"), build_prompts(12, 1, "test")]
            self.steps_per_epoch = 100
            self._init_dump_executor()

        def _reissue_inflight_prompts(self):
            pass

    assert issubclass(Trainer, PPOTrainer)
    wait_for_rules(settings)
    with limit_disk():
        Trainer(settings).fit(AgentLoopManager())


ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
try:
    main()
finally:
    (into / "seen.json").write_text(json.dumps(seen))
    tq.close()
    ray.shutdown()
