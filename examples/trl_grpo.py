"""GRPO with TRL on the CPU, logged to Rolloutdeck. The steps can be pinned and replayed.

    rolloutdeck up                                   # in another terminal
    python examples/trl_grpo.py                      # needs trl==1.16.0 and rolloutdeck
    python examples/trl_grpo.py --replay             # the same prompts; replays the plan `default`

A random model with two layers learns to write digits. Nothing is downloaded, and each letter is a token. Rolloutdeck
needs `callbacks=[RolloutdeckCallback()]`. With `keep`, steps can be pinned; `rollout_func` replays them.
"""

from __future__ import annotations

import argparse
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer

from rolloutdeck.trainers.trl import RolloutdeckCallback, replay_rollout_func


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {"<pad>": len(vocab), "<eos>": len(vocab) + 1}
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    set_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def digits(completions: list[str], **_: Any) -> list[float]:
    """Returns the share of digits."""
    return [sum(letter in "0123456789" for letter in text) / max(1, len(text)) for text in completions]


def readable(completions: list[str], **_: Any) -> list[float]:
    """Returns a tenth of the share of printable letters."""
    return [sum(" " <= letter <= "~" for letter in text) / max(1, len(text)) / 10 for text in completions]


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO with TRL on the CPU, logged to Rolloutdeck.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--replay", action="store_true", help="replay the pinned steps of the plan `default`")
    parser.add_argument("--output", default="trl_grpo_output")
    options = parser.parse_args()

    tokenizer = make_tokenizer()
    questions = [f"What is {left} + {right}? " for left in range(10) for right in range(10)]
    answers = [str(left + right) for left in range(10) for right in range(10)]
    data = Dataset.from_dict({"prompt": questions, "ground_truth": answers})
    args = GRPOConfig(
        output_dir=options.output, use_cpu=True, report_to=[], save_strategy="no", max_steps=options.steps,
        per_device_train_batch_size=32, per_device_eval_batch_size=32, num_generations=8, max_completion_length=16,
        learning_rate=3e-3, logging_steps=1, eval_strategy="steps", eval_steps=10,
        run_name="trl-grpo-replay" if options.replay else "trl-grpo",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=make_model(tokenizer),
        args=args,
        processing_class=tokenizer,
        reward_funcs=[digits, readable],
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        callbacks=[RolloutdeckCallback(keep=f"{options.output}/kept")],
        rollout_func=replay_rollout_func("default") if options.replay else None,
    )
    trainer.train()


if __name__ == "__main__":
    main()
