"""Run by the trainers' environment: a real TRL trainer on the CPU, with the model and tokenizer of our example.

argv: folder, then words: `grpo` or `rloo`, `plain` (without our callback), `raise` (our hooks fail), `keep` (steps
can be pinned), `replay` (as the plan says, or the steps in the folder FOLDER), `other` (other answers to the same
prompts), `full` (no file can grow), `wide` (twice the batch), `turns` (a rollout_func of one's own, of two turns),
`tools` (the trainer has one, and calls it), `saves` (a checkpoint a step), `resumed` (goes on from the last one),
`guided` (follows guidance rules), `again` (steps 3 and 4 have the prompts and responses of 1 and 2; nothing is
learnt), `waits` (for rules before step 3), `twice` (the same trainer trains again), `evals` (of two data sets). A
step CRASH ends the run in its update. Writes what the trainer held of each generation to seen.json, and result.json:
{"history": the trainer's log, "weights": hash of the trained weights, "rolls": the split and step of each call of the
tool, "trained": step, ids, advantage and tokens of each row in the loss, "told": what reward functions got as
guidance}; of several processes the second writes seen-1.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from examples.trl_grpo import make_model, make_tokenizer

folder, words = Path(sys.argv[1]), set(sys.argv[2:])
rank = int(os.environ.get("RANK", "0"))
seen: list[dict[str, Any]] = []
rolls: list[tuple[str, int]] = []
trained: list[tuple[int, list[int], float, int]] = []
reward_guidance: list[Any] = []
at: tuple[str, int] = ("", 0)  # the split and step that is made now

CALLS = [f'<tool_call>{{"name": "roll", "arguments": {{"faces": {faces}}}}}</tool_call>' for faces in (6, 0)]
CHAT = (
    "{% for one in messages %}<{{ one.role }}>{{ one.content }}{% for call in one.tool_calls or [] %}<tool_call>"
    "{{ call.function | tojson }}</tool_call>{% endfor %}<eos>{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% endif %}"
)
CALL = {
    "x-parser": "json", "x-parser-args": {"transform": "{type: 'function', function: @}"}, "type": "object",
    "properties": {"type": {"const": "function"}, "function": {"type": "object", "additionalProperties": {}}},
}  # fmt: skip
SCHEMA = {
    "x-regex": r"^(?P<content>(?:(?!<tool_call>)[\s\S])*)(?P<tool_calls>(?:<tool_call>.+?</tool_call>)+)?[\s\S]*$",
    "type": "object",
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": "string"},
        "tool_calls": {"type": "array", "x-regex-iterator": r"<tool_call>(.+?)</tool_call>", "items": CALL},
    },
}


def roll(faces: int) -> str:
    """Rolls a die.

    Args:
        faces: How many it has.
    """
    rolls.append(at)
    return f"{1 + len(rolls) % faces}"


def letters(completions: list[Any], log_extra: Any = None, **_: Any) -> list[float]:
    texts = [
        completion if isinstance(completion, str) else "".join(item["content"] for item in completion)
        for completion in completions
    ]
    if log_extra:
        log_extra("first", [text[:1] for text in texts])
    return [sum(letter.isascii() for letter in text) / 10 for text in texts]


def short(completions: list[str], completion_ids: list[list[int]], **options: Any) -> list[float | None]:
    """None for some, as TRL allows it."""
    reward_guidance.append(options.get("guidance"))
    if "points" in options:
        return [
            each["heard"] + (world == "small") for each, world in zip(options["points"], options["world"], strict=True)
        ]
    return [None if sum(ids) % 3 == 0 else 1.0 / len(ids) for ids in completion_ids]


def generate_turns(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """What the model says, a word of an environment that knows points, and what the model says then."""
    ids = trainer.processing_class(text=prompts)["input_ids"]
    received = trainer.processing_class(text=[" go on: "])["input_ids"][0]
    answers = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    first, _ = trainer._generate_single_turn(ids, None, {}, answers)
    messages = [list(item) for item in first]
    second, _ = trainer._generate_single_turn(
        [[*a, *b, *received] for a, b in zip(ids, messages, strict=True)], None, {}, 1
    )
    pairs = [(turn, list(other)) for turn, other in zip(messages, second, strict=True)]
    return {
        "prompt_ids": ids,
        "completion_ids": [[*turn, *received, *other] for turn, other in pairs],
        "logprobs": None,
        "env_mask": [[1] * len(turn) + [0] * len(received) + [1] * len(other) for turn, other in pairs],
        "points": [{"heard": len(turn), "of": None} for turn, _ in pairs],
        "world": "small",
    }


def build_watched_trainer(base: type) -> type:
    class Watched(base):  # type: ignore[misc, valid-type]
        """Keeps what it held, from its own batch and its own record."""

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            global at
            at = ("train" if self.model.training else "eval", self.state.global_step + self.model.training)
            if "waits" in words and at == ("train", 3):
                wait_for_rules(self)
            if "again" in words:
                torch.manual_seed(self.state.global_step % 2)
            if "other" in words:
                torch.manual_seed(99 + 1000 * rank + self.state.global_step)
            batch = super()._generate_and_score_completions(inputs)
            # TRL shuffles the rows now, and losses are sums in their order.
            torch.manual_seed(1000 * rank + self.state.global_step)
            count, mask = len(inputs), batch["completion_mask"]
            newest = {name: list(values)[-count:] for name, values in self._logs["rewards"].items()}
            seen.append(
                {
                    "split": at[0],
                    "step": at[1],
                    "prompt": [item["prompt"] for item in inputs],
                    "completion": list(self._logs["completion"])[-count:],
                    "rewards": newest,
                    "first": list(self._logs["extra"]["first"])[-count:],
                    "advantages": batch["advantages"].tolist(),
                    "mask": batch["tool_mask"].tolist() if "tool_mask" in batch else None,
                    "ids": [
                        ids[: int(real.sum())].tolist() for ids, real in zip(batch["completion_ids"], mask, strict=True)
                    ],
                }
            )
            if at == ("train", int(os.environ.get("CRASH", "0"))):
                raise RuntimeError("out of memory")
            return batch

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if model.training:
                for row, advantage in enumerate(inputs["advantages"].tolist()):
                    ids = [token for token in inputs["completion_ids"][row].tolist() if token != PAD]
                    tokens = int(inputs["completion_mask"][row].sum())
                    trained.append((self.state.global_step + 1, ids, advantage, tokens))
            return super().compute_loss(model, inputs, *args, **kwargs)

    return Watched


def wait_for_rules(trainer: Any) -> None:
    from rolloutdeck.trainers.trl.plugin.ranks import find_callback

    end = time.monotonic() + 100
    while not find_callback(trainer).run.guidance().rules.version and time.monotonic() < end:
        time.sleep(0.05)


PAD = make_tokenizer().pad_token_id


def main() -> None:
    base, config = (RLOOTrainer, RLOOConfig) if "rloo" in words else (GRPOTrainer, GRPOConfig)
    tokenizer = make_tokenizer()
    texts: list[Any] = [f"What is {number} + {number + 1}?" for number in range(16)]
    if "tools" in words:
        tokenizer.add_tokens([*CALLS, "<user>", "<assistant>", "<tool>"])
        tokenizer.chat_template, tokenizer.response_schema = CHAT, SCHEMA
        texts = [[{"role": "user", "content": text}] for text in texts]
    data = Dataset.from_dict({"prompt": texts, "answer": [str(2 * number + 1) for number in range(16)]})
    args = config(
        output_dir=str(folder / "out"), use_cpu=True, report_to=[],
        save_strategy="steps" if "saves" in words else "no", save_steps=1,
        per_device_train_batch_size=8 if "wide" in words else 4,
        per_device_eval_batch_size=4, num_generations=4, gradient_accumulation_steps=2,
        max_completion_length=40 if "tools" in words else 12,
        logging_steps=1, eval_steps=2,
        run_name="tiny", seed=3, disable_tqdm=True, reward_weights=[1.0, 0.5],
        **(
            {"shuffle_dataset": False, "max_steps": 4, "eval_strategy": "no", "learning_rate": 0.0}
            if "again" in words
            else {"max_steps": 3, "eval_strategy": "steps", "learning_rate": 1e-2}
        ),
        **({"beta": 0.0} if "rloo" in words else {"log_completions": "full" not in words}),
    )  # fmt: skip
    bias = {tokenizer.eos_token_id: 3.0}  # some responses end by themselves
    if "tools" in words:
        bias = {tokenizer.eos_token_id: 7.5} | dict.fromkeys(tokenizer.convert_tokens_to_ids(CALLS), 8.0)
    if "again" in words:
        data = data.select(range(4))
    args.generation_kwargs = {"sequence_bias": [[[each], more] for each, more in bias.items()]}
    more: dict[str, Any] = {"tools": [roll]} if "tools" in words else {}
    if "plain" not in words:
        from rolloutdeck.trainers.trl import RolloutdeckCallback

        guided = "guided" in words or None
        more["callbacks"] = [RolloutdeckCallback(keep=folder / "kept" if "keep" in words else "", guidance=guided)]
        if guided:
            from rolloutdeck.client import guidance

            guidance.GUIDANCE_SECONDS = 0.2
        if "raise" in words:
            from rolloutdeck.trainers.trl.plugin import capture, replay_func, rows
            from rolloutdeck.trainers.trl.plugin import guidance as ours

            del ours.match_rows
            del capture.CAPTURED_TENSORS, rows.GROUND_TRUTH_COLUMNS, replay_func.broadcast_from_main
    if "turns" in words:
        more["rollout_func"] = generate_turns
    if "replay" in words:
        from rolloutdeck.trainers.trl import replay_rollout_func

        own = {"otherwise": generate_turns} if "turns" in words else {}
        more["rollout_func"] = replay_rollout_func(folder=os.environ.get("FOLDER", ""), **own)
        for other in os.environ.get("NO_STEPS", "").split():
            try:
                replay_rollout_func(folder=other)
            except ValueError as error:
                print(error, file=sys.stderr)
    evaluated: Any = data.select(range(3))
    if "evals" in words:
        evaluated = {"low": data.select(range(1)), "high": data.select(range(14, 16))}
    trainer = build_watched_trainer(base)(
        model=make_model(tokenizer), args=args, processing_class=tokenizer, reward_funcs=[letters, short],
        train_dataset=data, eval_dataset=evaluated, **more,
    )  # fmt: skip
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if "full" in words:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    trainer.train(resume_from_checkpoint="resumed" in words)
    if "twice" in words:
        trainer.train()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    digest = hashlib.sha256()
    for value in trainer.model.state_dict().values():
        digest.update(value.numpy().tobytes())
    timed = ("runtime", "per_second", "step_time")
    history = [
        {name: value for name, value in item.items() if not any(word in name for word in timed)}
        for item in trainer.state.log_history
    ]
    whose = f"-{rank}" if rank else ""
    (folder / f"seen{whose}.json").write_text(json.dumps(seen))
    result = {
        "history": history,
        "weights": digest.hexdigest(),
        "rolls": rolls,
        "trained": trained,
        "told": reward_guidance,
    }
    (folder / f"result{whose}.json").write_text(json.dumps(result))


main()
