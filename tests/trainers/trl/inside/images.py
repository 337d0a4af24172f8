"""Run by the trainers' environment: a tiny vision model whose prompts contain their images.

argv: folder, then per training how its steps are made: `plain`, or `replay` with the steps of the folder. Prints a JSON
list: per training whether each of its batches had the images.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from PIL import Image
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)
from trl import GRPOConfig, GRPOTrainer

from examples.trl_grpo import make_tokenizer
from rolloutdeck.trainers.trl import RolloutdeckCallback, replay_rollout_func

CHAT = (
    "{% for one in messages %}<{{ one.role }}>{% for part in one.content %}{% if part.type == 'image' %}<image>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
folder = Path(sys.argv[1])


def make_processor() -> LlavaProcessor:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<image>", "<user>", "<assistant>"], special_tokens=True)
    size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(**size), tokenizer=tokenizer, chat_template=CHAT, image_token="<image>",
        patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
    )  # fmt: skip


def make_model(tokenizer: Any) -> LlavaForConditionalGeneration:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    vision = CLIPVisionConfig(**sizes, image_size=16, patch_size=8, projection_dim=16)
    text = LlamaConfig(**sizes, vocab_size=len(tokenizer), num_key_value_heads=2, **ends)
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=image_id, vision_feature_layer=-1)
    return LlavaForConditionalGeneration(config)


def build_prompts(batch: dict[str, Any]) -> dict[str, Any]:
    images = [Image.new("RGB", (16, 16), (number, 0, 0)) for number in batch["number"]]
    parts = [[{"type": "image", "image": image}, {"type": "text", "text": "What is it?"}] for image in images]
    return {"prompt": [[{"role": "user", "content": content}] for content in parts]}


def measure(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(completion[0]["content"])) for completion in completions]


def train(mode: str) -> list[bool]:
    found: list[bool] = []

    class Watched(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            found.append("pixel_values" in batch)
            return batch

    processor = make_processor()
    args = GRPOConfig(
        output_dir=str(folder / "out"), use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
        per_device_train_batch_size=4, num_generations=4, max_completion_length=4, max_steps=2,
    )  # fmt: skip
    more = {"rollout_func": replay_rollout_func(folder=folder)} if mode == "replay" else {}
    trainer = Watched(
        model=make_model(processor.tokenizer), args=args, processing_class=processor, reward_funcs=[measure],
        train_dataset=Dataset.from_dict({"number": list(range(8))}).with_transform(build_prompts),
        callbacks=[RolloutdeckCallback()], **more,
    )  # fmt: skip
    trainer.train()
    return found


(folder / "step_000002").mkdir()
(folder / "step_000002/rollout-0.json").write_text("{}")
print(json.dumps([train(way) for way in sys.argv[2:]]))
