"""Real methods of verl's `FullyAsyncRollouter` and `FullyAsyncTrainer`, each in the process that argv[2] names.

The rollouter validates twice at one feed index, with another model the second time; then it answers two prompts, in
the mood argv[3], for each of the two batches that the trainer takes at one update. What they exchange is in
argv[1], and what the trainer held of each batch; what follows overrides the configuration.

`fit` is the rollouter's own loop, which answers three prompts, from number 1; it writes what it put into the queue.
`crash` is the trainer's, without a queue: it raises at once, in an actor that lives on. `pickle` and `unpickle` do what
Ray does with the classes of both actors, and run their loops.
"""

import asyncio
import json
import pickle
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import ray
from omegaconf import OmegaConf
from stubs import TOKENIZER, Model, build_config, build_prompts, compute_log_probs, limit_disk
from verl import DataProto
from verl.experimental.fully_async_policy.detach_utils import RolloutSample, assemble_batch_from_rollout_samples
from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncAgentLoopManager, FullyAsyncRollouter
from verl.experimental.fully_async_policy.fully_async_trainer import FullyAsyncTrainer
from verl.utils.skip import SkipManager

into, action, mood, overrides = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
settings = build_config(validation_data_dir=str(into / "val"), rollout_data_dir=str(into / "rollout"))
settings.async_training = {"use_trainer_do_validate": False, "require_batches": 1}
settings.data.gen_batch_size = 1
settings = OmegaConf.merge(settings, OmegaConf.from_dotlist(overrides))


def get_actor_class(actor):
    """The class of an actor, without its process."""
    return actor.__ray_metadata__.modified_class


class Worker:
    """Stands in for an agent loop worker."""

    def __init__(self, mood):
        self.model = Model()
        self.model.mood = mood
        self.generate_sequences = SimpleNamespace(remote=self.remote)

    def remote(self, batch):
        result = self.model.generate_sequences(batch)
        result.meta_info = {
            "metrics": [{"generate_sequences": 1.0, "tool_calls": 0.0}] * len(result),
            "reward_extra_keys": result.meta_info["reward_extra_keys"],
        }
        done = asyncio.get_running_loop().create_future()
        done.set_result(result)
        return SimpleNamespace(future=lambda: done)


def build_manager(mood):
    created = FullyAsyncAgentLoopManager.__new__(FullyAsyncAgentLoopManager)
    created.config, created.agent_loop_workers = settings, [Worker(mood)]
    return created


async def answer_prompts(first, mood):
    """Two prompts through the rollouter's own method; what it would put into the queue."""
    rollouter = get_actor_class(FullyAsyncRollouter).__new__(get_actor_class(FullyAsyncRollouter))
    rollouter.async_rollout_manager, queue_items = build_manager(mood), []
    rollouter.total_generated_samples = rollouter._step_generated_samples = rollouter.processed_sample_count = 0

    async def put_sample(sample):
        queue_items.append(sample)
        return True

    async def get_statistics():
        return {"count/total_generated_samples": 2}

    rollouter.message_queue_client, rollouter.get_statistics = SimpleNamespace(put_sample=put_sample), get_statistics
    for feed in (first, first + 1):
        batch = DataProto.from_single_dict(build_prompts(feed, 1, "train")).repeat(2, interleave=True)
        sample = RolloutSample(full_batch=batch, sample_id=f"sample_0_{feed}", epoch=0, rollout_status={})
        await rollouter._process_single_sample_streaming(sample)
    return queue_items


async def fit_rollouter():
    """The loop of the rollouter, without servers and without waiting. Returns what it put into the queue."""
    rollouter = get_actor_class(FullyAsyncRollouter).__new__(get_actor_class(FullyAsyncRollouter))
    rollouter.config, rollouter.tokenizer, rollouter.global_steps, rollouter.paused = settings, TOKENIZER, 1, False
    rollouter.async_rollout_manager, queue_items = build_manager(mood), []
    rollouter.train_dataloader, rollouter.total_rollout_steps = (
        [build_prompts(number, 1, "train") for number in (1, 2, 3)],
        3,
    )
    rollouter.total_generated_samples = rollouter._step_generated_samples = rollouter.processed_sample_count = 0
    rollouter.staleness_samples = rollouter.dropped_stale_samples = rollouter.required_samples = 0
    rollouter.max_required_samples = rollouter.max_queue_size = 100
    rollouter.max_concurrent_samples = rollouter.staleness_threshold = 1
    rollouter.pending_queue, rollouter.active_tasks, rollouter._active_count_history = asyncio.Queue(), set(), []
    rollouter._init_async_objects()

    async def put_sample(sample):
        queue_items.append("end" if sample is None else "sample")
        return True

    async def get_statistics():
        return {"queue_size": 0}

    rollouter.message_queue_client = SimpleNamespace(put_sample=put_sample, get_statistics=get_statistics)
    wait = asyncio.sleep
    asyncio.sleep = lambda seconds: wait(min(seconds, 0.01))
    try:
        await rollouter.fit()
    finally:
        (into / "put.json").write_text(json.dumps(queue_items))


def fit():
    settings.actor_rollout_ref.rollout.multi_turn = {"enable": False}
    SkipManager.init(settings)
    asyncio.run(fit_rollouter())
    time.sleep(2)  # a training lasts longer than it takes to send a tokenizer


def build_trainer(kind):
    """A trainer that has no queue, so that its loop raises."""
    from verl.utils.tracking import Tracking

    trainer = kind.__new__(kind)
    trainer.config, trainer.message_queue_client = settings, None
    trainer.logger = Tracking("math", "qwen", settings.trainer.logger, OmegaConf.to_container(settings))
    return trainer


def crash():
    try:
        asyncio.run(build_trainer(get_actor_class(FullyAsyncTrainer)).fit())
    except ValueError as error:
        print(json.dumps(str(error)))  # as Ray does: the process ends later, without an error


def pickle_actors():
    classes = [get_actor_class(FullyAsyncTrainer), get_actor_class(FullyAsyncRollouter)]
    (into / "actors.pickle").write_bytes(ray.cloudpickle.dumps(classes))


def unpickle_actors():
    trainer, rollouter = ray.cloudpickle.loads((into / "actors.pickle").read_bytes())
    idle = rollouter.__new__(rollouter)
    idle.config, idle.message_queue_client = settings, None
    for actor in (build_trainer(trainer), idle):
        try:
            asyncio.run(actor.fit())
        except ValueError as error:
            print(json.dumps(str(error)))


def rollout():
    SkipManager.init(settings)
    rollouter = get_actor_class(FullyAsyncRollouter).__new__(get_actor_class(FullyAsyncRollouter))
    rollouter.config, rollouter.tokenizer, rollouter.global_steps, rollouter.use_rm = settings, TOKENIZER, 1, False
    rollouter.val_dataloader = [build_prompts(10, 2, "test")]
    rollouter._init_dump_executor()
    rollouter.async_rollout_manager = Model()
    with limit_disk():
        for message in ("", "plus"):
            rollouter.async_rollout_manager.mood = message
            print(rollouter.do_validate())
        rollouter._shutdown_dump_executor()
        batches = [asyncio.run(answer_prompts(2 * number, mood)) for number in (1, 2)]
    for number, samples in enumerate(batches, 1):
        (into / f"batch-{number}.pickle").write_bytes(pickle.dumps(samples))


def train():
    trainer = get_actor_class(FullyAsyncTrainer).__new__(get_actor_class(FullyAsyncTrainer))
    trainer.config, trainer.tokenizer, trainer.global_steps, trainer.current_param_version = settings, TOKENIZER, 1, 5
    trainer.use_critic = trainer.use_reference_policy = trainer.use_rm = False
    trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
    trainer._init_dump_executor()
    from verl.utils.tracking import Tracking

    trainer.logger = Tracking("math", "qwen", settings.trainer.logger, OmegaConf.to_container(settings))
    with limit_disk():
        batches = list(iterate_batches(trainer))
        trainer._shutdown_dump_executor()
        trainer.logger.log(trainer.metrics, step=trainer.current_param_version)
        trainer.logger.finish()
    for number, batch in enumerate(batches, 1):
        messages = [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in batch["responses"]]
        (into / f"said-{number}.json").write_text(json.dumps(messages))
    held = ("responses", "response_mask", "old_log_probs", "advantages")
    seen = [{"rows": [{name: batch[name].tolist() for name in held}]} for batch in batches]
    (into / "seen.json").write_text(json.dumps(seen))


def iterate_batches(trainer):
    """The tensors of each batch that the trainer updates the actor with."""
    for number in (1, 2):
        samples = [ray.cloudpickle.loads(item) for item in pickle.loads((into / f"batch-{number}.pickle").read_bytes())]
        batch = assemble_batch_from_rollout_samples(samples, TOKENIZER, settings)
        batch.batch["old_log_probs"] = compute_log_probs(batch.batch["responses"])
        trainer.metrics, trainer.timing_raw = {}, {"step": 1.0}
        batch = trainer._fit_compute_advantage(trainer._fit_compute_reward(batch))
        trainer._fit_dump_data(batch)
        trainer._fit_collect_metrics(batch)
        yield batch.batch


ACTIONS = {"rollouter": rollout, "trainer": train, "fit": fit, "crash": crash}
({**ACTIONS, "pickle": pickle_actors, "unpickle": unpickle_actors})[action]()
