"""AReaL's own `RLVRWorkflow`, resolution of workflows, groups and `StatsLogger`, with `record`.

    python training.py DIR              the trainer's process; it starts one process of rollouts
    python training.py DIR ARGUMENTS    a process of rollouts with these arguments of `train`, as JSON

Stand-ins: an engine that answers with known tokens, and trackers of other services.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

for name in ("swanlab", "trackio", "wandb", "tensorboardX"):
    stand_in = ModuleType(name)
    stand_in.__spec__ = ModuleSpec(name, None)  # other packages look for it
    vars(stand_in).update(dict.fromkeys(("init", "login", "log", "finish", "SummaryWriter"), lambda *_, **__: None))
    sys.modules[name] = stand_in

from areal import workflow_context  # noqa: E402
from areal.api import ModelResponse  # noqa: E402
from areal.api.cli_args import GenerationHyperparameters  # noqa: E402
from areal.infra.remote_inf_engine import RemoteInfEngine  # noqa: E402
from areal.infra.workflow_context import WorkflowContext  # noqa: E402
from areal.utils.stats_logger import StatsLogger  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from tokenizers.pre_tokenizers import Split  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

FOLDER = Path(sys.argv[1])
WORKFLOW = "areal.workflow.rlvr.RLVRWorkflow"


def score_answer(prompt: str, completion: str, prompt_ids: Any, completion_ids: Any, **data: Any) -> float:
    """A reward function, as AReaL calls it."""
    return float(data["answer"] in completion.replace(" ", ""))


def build_tokenizer() -> Any:
    letters = {letter: number for number, letter in enumerate("<>abcdefghijklmnopqrstuvwxyz0123456789+=#:\n ")}
    letters |= {"<eos>": len(letters), "<unk>": len(letters) + 1}
    model = Tokenizer(WordLevel(letters, unk_token="<unk>"))
    model.pre_tokenizer = Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<eos>", pad_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    return tokenizer


class Engine:
    """Answers `1+1=2`, then `1+1=3`, with weights that change from version 4 to 5 within an answer."""

    def __init__(self) -> None:
        self.calls = 0

    async def agenerate(self, request: Any) -> ModelResponse:
        answer = request.tokenizer.encode(f"1+1={2 + self.calls % 2}", add_special_tokens=False)
        self.calls += 1
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=answer,
            output_logprobs=[-0.5] * len(answer),
            output_versions=[4] * (len(answer) - 1) + [5],
            stop_reason="stop",
            tokenizer=request.tokenizer,
        )


def roll_out(arguments: dict[str, Any]) -> None:
    from areal.reward import __name__ as _  # noqa: F401 - rewards run in processes of AReaL's, which import this

    inner = {"gconfig": GenerationHyperparameters(), "tokenizer": build_tokenizer(), "reward_fn": score_answer}
    arguments["workflow_kwargs"]["workflow_kwargs"] = inner
    logger = SimpleNamespace(warning=print)
    resolver = SimpleNamespace(config=SimpleNamespace(agent=None), logger=logger)
    workflow = RemoteInfEngine._resolve_workflow(resolver, arguments["workflow"], arguments["workflow_kwargs"], 2)
    engine = Engine()
    for is_eval in (False, True):
        workflow_context.set(WorkflowContext(is_eval=is_eval, task_id=3))
        messages = [{"role": "user", "content": "1+1"}]
        result = asyncio.run(workflow.arun_episode(engine, {"messages": messages, "answer": "1+1=2"}))
        print(result["rewards"].tolist(), tuple(result["input_ids"].shape))


def train() -> None:
    from rolloutdeck.trainers import areal

    off = SimpleNamespace(mode="disabled", wandb_base_url="", wandb_api_key="", api_key="", project="", name="")
    vars(off).update(id_suffix="", entity="", job_type="", group="", notes="", tags=[], path=None, space_id=None)
    names = {"experiment_name": "math", "trial_name": "trial0", "fileroot": str(FOLDER)}
    stats = SimpleNamespace(**names, wandb=off, swanlab=off, trackio=off, tensorboard=off)
    stats_logger = StatsLogger.__new__(StatsLogger)
    stats_logger.config, stats_logger.summary_writer, stats_logger._last_commit_step = stats, None, -1
    stats_logger.ft_spec = SimpleNamespace(total_train_epochs=1, steps_per_epoch=2, total_train_steps=2)
    config = SimpleNamespace(**names, cluster=SimpleNamespace(fileroot=str(FOLDER)), stats_logger=stats)
    trainer = SimpleNamespace(config=config, stats_logger=stats_logger)
    arguments = areal.record(trainer, workflow=WORKFLOW, workflow_kwargs={})
    subprocess.run([sys.executable, __file__, str(FOLDER), json.dumps(arguments)], check=True)
    for step in (0, 1):
        stats_logger.commit(0, step, step, {"ppo_actor/loss": 0.5 * step, "reward": 0.5, "reward__count": 2.0})
    print("trained")


if __name__ == "__main__":
    train() if len(sys.argv) == 2 else roll_out(json.loads(sys.argv[2]))
