"""Stand-ins for GPUs where real verl code runs on a CPU: the language model, its servers, the optimiser.

With NO_UNPICKLING in the environment, verl's skip roles raise instead of unpickling a dump. BESIDE says what fails
during the training: `unnamed` (its logger does not name us), `raise` (our hooks fail) or `full` (no file can grow).
STEPS is how many steps a training makes, RESUMED how many of them its checkpoint has. Run by the trainers' environment
only. The texts, scores and log-probs that come out are functions of their input.
"""

import os
import resource
import uuid
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import torch
from constants import WORDS
from omegaconf import OmegaConf
from tensordict import TensorDict
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.utils.skip import SkipManager, rollout_skip

PROMPT, RESPONSE = 8, 6
BESIDE = os.environ.get("BESIDE", "")
STEPS, RESUMED = int(os.environ.get("STEPS", "2")), int(os.environ.get("RESUMED", "0"))
if BESIDE == "raise":
    from rolloutdeck.trainers.verl.plugin import dataset_fields, evictions, guidance, metrics, trainer_v0, trainer_v1

    del (
        guidance.GuidedBatch,
        trainer_v0.PaddedRows,
        metrics.open_verl_session,
        trainer_v1.JaggedBatch,
        evictions.Counter,
        dataset_fields.DATASET_FIELDS,
    )


@contextmanager
def limit_disk():
    """Around a training: where the disk is full, no file can grow until it has ended."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if BESIDE == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def wait_for_rules(settings):
    """Before a training: with GUIDED in the environment it begins with the rules of the server."""
    if os.environ.get("GUIDED"):
        from rolloutdeck.trainers.verl.plugin.session import find_verl_session

        assert find_verl_session(settings).run.guidance().wait(60)


def refuse_unpickling(*_, **__):
    raise AssertionError("verl unpickles a dump")


if os.environ.get("NO_UNPICKLING"):
    rollout_skip.torch = SimpleNamespace(load=refuse_unpickling, save=torch.save)
    rollout_skip.DataProto = SimpleNamespace(load_from_disk=refuse_unpickling)


def build_tokenizer():
    words = Tokenizer(models.WordLevel({word: position for position, word in enumerate(WORDS)}, unk_token="<eos>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


TOKENIZER = build_tokenizer()


def build_config(**trainer):
    """The part of verl's configuration that the code under test reads."""
    if BESIDE == "unnamed":
        trainer["logger"] = ["console"]
    if BESIDE == "full":  # verl's own files could not be written either
        trainer |= {"validation_data_dir": None, "rollout_data_dir": None}
    return OmegaConf.create(
        {
            "trainer": {
                "project_name": "math", "experiment_name": "qwen", "logger": ["console", "rolloutdeck"],
                "log_val_generations": 0, "validation_data_dir": None, "rollout_data_dir": None, "use_v1": False,
                "balance_batch": False, "critic_warmup": 0, "save_freq": -1, "test_freq": 2, "total_epochs": 1,
                "val_before_train": True, "esi_redundant_time": 0, "default_local_dir": "checkpoints",
                "resume_mode": "disable", "v1": {"trainer_mode": "sync", "sync": {"parameter_sync_step": 1}}, **trainer,
            },
            "data": {"max_prompt_length": PROMPT, "max_response_length": RESPONSE, "train_batch_size": 2},
            "algorithm": {
                "adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "use_kl_in_reward": False,
                "norm_adv_by_std_in_grpo": True, "filter_groups": {"enable": False},
            },
            "actor_rollout_ref": {
                "model": {"path": "tiny"},
                "actor": {"loss_agg_mode": "token-mean", "loss_scale_factor": None, "ppo_mini_batch_size": 2},
                "rollout": {
                    "n": 2, "temperature": 1.0, "calculate_log_probs": False, "agent": {"num_workers": 1},
                    "val_kwargs": {"n": 1, "do_sample": False},
                },
            },
            "global_profiler": {"steps": None, "profile_continuous_steps": False},
            "skip": {role: {"enable": False} for role in ("rollout", "async_rollout", "rollout_tq")},
        }
    )  # fmt: skip


def build_prompts(first, count, split):
    """A batch as the data loader gives it: `What is {i} plus 1 ?`, with ground truth, data source and index."""
    requested = range(first, first + count)
    columns = {
        "raw_prompt": [[{"role": "user", "content": f"What is {i} plus 1 ?"}] for i in requested],
        "reward_model": [{"style": "rule", "ground_truth": str(i + 1)} for i in requested],
        "data_source": [f"arith/{split}"] * count,
        "extra_info": [{"index": i, "split": split} for i in requested],
    }
    result = {name: np.empty(count, dtype=object) for name in columns}
    for name, values in columns.items():
        result[name][:] = values
    return {**result, "dummy_tensor": torch.zeros(count, 1, dtype=torch.uint8)}


def encode_padded(text, width, side):
    result = TOKENIZER.encode(text, add_special_tokens=False)
    pad = [0] * (width - len(result))
    mask = [1] * len(result)
    if side == "left":
        return pad + result, [0] * len(pad) + mask
    return result + pad, mask + [0] * len(pad)


class Model:
    """Stands in for the agent loop manager: a right answer for the first of a group, a wrong one for the others.

    `mood` changes what it says; in the mood `silent` the last answer is empty, as of an aborted request. `odd`: the
    answers to prompt 2 come with a column that is not built without unpickling.
    """

    def __init__(self):
        self.mood, self.calls, self.odd = "", 0, False

    @SkipManager.annotate(role="rollout")  # as verl's own has it
    def generate_sequences(self, batch):
        self.calls += 1
        requests = [messages[0]["content"] for messages in batch.non_tensor_batch["raw_prompt"]]
        texts = [self.answer(text, requests[:position].count(text)) for position, text in enumerate(requests)]
        if self.mood == "silent":
            texts[-1] = ""
        result = build_generated_batch(requests, texts)
        if self.odd and requests[0].startswith("What is 2 "):
            result.non_tensor_batch["odd"] = np.asfortranarray(np.zeros((len(requests), 2)))
        return result

    def answer(self, asked, before):
        number = int(asked.split()[2]) + 1
        return f"sum is {number} {self.mood}".strip() if before == 0 else f"wrong {number + before}"


def build_generated_batch(asked, answers):
    """What verl's own post-processing makes of a batch of answers."""
    left = [encode_padded(text, PROMPT, "left") for text in asked]
    right = [encode_padded(text, RESPONSE, "right") for text in answers]
    scores = torch.zeros(len(asked), RESPONSE)
    for position, (text, (_, mask)) in enumerate(zip(answers, right, strict=True)):
        scores[position, max(0, sum(mask) - 1)] = 1.0 if text.startswith("sum") else 0.0
    attention = torch.tensor([left_part[1] + other[1] for left_part, other in zip(left, right, strict=True)])
    tensors = {
        "prompts": torch.tensor([item[0] for item in left]),
        "responses": torch.tensor([item[0] for item in right]),
        "response_mask": torch.tensor([item[1] for item in right]),
        "input_ids": torch.tensor([left_part[0] + other[0] for left_part, other in zip(left, right, strict=True)]),
        "attention_mask": attention,
        "position_ids": attention.cumsum(-1) - 1,
        "rm_scores": scores,
    }
    raw = np.empty(len(asked), dtype=object)
    raw[:] = [[{"role": "user", "content": text}] for text in asked]
    empty = np.empty(len(asked), dtype=object)
    empty[:] = [{} for _ in asked]
    arrays = {
        "__num_turns__": np.full(len(asked), 2, dtype=np.int32),
        "acc": np.array([text.startswith("sum") for text in answers]),
        "pred": np.array(answers, dtype=object),
        "raw_prompt": raw,
        "multi_modal_inputs": empty,
        "min_global_steps": np.full(len(asked), 3, dtype=object),
        "max_global_steps": np.full(len(asked), 4, dtype=object),
    }
    meta = {"timing": {}, "reward_extra_keys": ["acc", "pred"]}
    return DataProto(TensorDict(tensors, batch_size=len(asked)), arrays, meta)


def compute_log_probs(responses):
    """Stands in for the actor's forward pass."""
    return -(responses % 7).float() / 10 - 0.123456789


def create_uid():
    return str(uuid.uuid4())


class ResumableBatches(list):
    """A data loader that goes on where the checkpoint was written, as verl restores its own."""

    position = 0

    def __iter__(self):
        first, self.position = self.position, 0
        return iter(self[first:])


class TrainerWithoutWorkers:
    """Mixed into a trainer of verl, so that its `fit()` runs: only what needs a GPU is another.

    `seen`: what it held of each row at each update. `crash`: the step whose update fails, 0 for none.
    """

    crash = 0

    def set_up(self, settings, model, train):
        """In the place of verl's own `__init__`. `model` answers; `train` are the training batches."""
        self.config, self.tokenizer, self.total_training_steps, self.seen = settings, TOKENIZER, STEPS, []
        self.use_rm = self.use_critic = self.use_reference_policy = False
        self.async_rollout_manager, self.train_dataloader = model, ResumableBatches(train)
        self.val_dataloader = [build_prompts(10, 2, "test"), build_prompts(12, 1, "test")]
        self.checkpoint_manager = SimpleNamespace(update_weights=lambda *_: None, sleep_replicas=lambda: None)
        self.actor_rollout_wg, self.train_dataset = SimpleNamespace(), SimpleNamespace()
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        self._init_dump_executor()

    def _load_checkpoint(self):
        self.global_steps, self.train_dataloader.position = RESUMED, RESUMED % len(self.train_dataloader)
        return RESUMED

    def _start_profiling(self, *_):
        pass

    def _stop_profiling(self, *_, **__):
        pass

    def _compute_old_log_prob(self, batch):
        result = compute_log_probs(batch.batch["responses"])
        return DataProto.from_single_dict({"old_log_probs": result, "entropys": torch.ones_like(result)}), 0.0

    def _update_actor(self, batch):
        if self.crash == self.global_steps:
            raise RuntimeError("CUDA error")
        rows = [
            {
                "response": self.tokenizer.decode(batch.batch["responses"][position], skip_special_tokens=True),
                "logprobs": batch.batch["old_log_probs"][position].tolist(),
                "advantages": batch.batch["advantages"][position].tolist(),
                "mask": batch.batch["response_mask"][position].tolist(),
                "ids": batch.batch["responses"][position].tolist(),
                "uid": batch.non_tensor_batch["uid"][position],
            }
            for position in range(len(batch))
        ]
        self.seen.append({"step": self.global_steps, "rows": rows})
        return DataProto.from_single_dict({}, meta_info={"metrics": {"actor/pg_loss": [0.5]}})
