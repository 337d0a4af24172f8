"""GRPO on the CPU: a tiny model learns to calculate, and you watch it in Rolloutdeck.

    rolloutdeck up                   # in another terminal; or `rolloutdeck up --demo` for both
    python examples/tiny_grpo.py     # needs torch==2.13.0 and rolloutdeck

A short supervised warm-up on solutions with errors teaches the form of an answer. Group relative policy optimisation
(arXiv:2402.03300, section 4.1) then makes the answers right: it samples a group of answers per prompt and reinforces
those above the group's mean. Rolloutdeck needs the calls `init`, `log`, `log_samples` and `finish`. `tiny_replay.py`
stores each step, so that it can be pinned, and replays the pinned steps of the run's plan. It also sends a tokenizer,
so that pages show tokens as text. With `--guidance` the training follows the guidance rules of the project.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_replay import ReplayableSteps
from torch import Tensor, nn
from torch.nn import functional as F

import rolloutdeck

PAD, END, DIGITS = "_", "$", "0123456789"
LETTERS = PAD + END + DIGITS + "+-*= ,#"  # one letter is one token
IDS = {letter: number for number, letter in enumerate(LETTERS)}
TEXTS = {**{letter: letter for letter in LETTERS}, "#": "\n#### "}  # the answer follows this marker
PROMPT_LENGTH, RESPONSE_LENGTH = 6, 20
PROMPTS, GROUP = 32, 8  # prompts per step, samples per prompt
EPOCHS, CLIP, LEARNING_RATE = 3, 0.2, 2e-3
VALIDATE_EVERY, TRIES = 10, 4
Metrics = dict[str, float]


@dataclass(frozen=True)
class Problem:
    index: int
    kind: str
    prompt: str
    solution: str  # with intermediate steps; the answer follows #

    @property
    def answer(self) -> str:
        return self.solution.split("#")[-1]


def make_problem(index: int, rng: random.Random) -> Problem:
    kind = rng.choice(["add", "sub", "mul"])
    if kind == "add":  # first the ones, then the tens with the carry
        a, b = rng.randint(10, 29), rng.randint(10, 29)
        ones = a % 10 + b % 10
        tens = f"{a // 10}+{b // 10}+{ones // 10}={(a + b) // 10}"
        return Problem(index, kind, f"{a}+{b}=", f"{a % 10}+{b % 10}={ones},{tens}#{a + b}")
    if kind == "sub":
        a = rng.randint(4, 20)
        b = rng.randint(1, a)
        return Problem(index, kind, f"{a:>2}-{b:>2}=", f"#{a - b}")
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return Problem(index, kind, f"{a:>2}*{b:>2}=", f"#{a * b}")


class Policy(nn.Module):
    """Predicts the next letter from the letters before it."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), 32)
        self.memory = nn.GRU(32, width, batch_first=True)
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden, state = self.memory(self.embed(tokens), state)
        return self.head(hidden), state

    def log_probs(self, prompts: Tensor, responses: Tensor) -> tuple[Tensor, Tensor]:
        """Returns log-prob and entropy of each response token, both (rows, RESPONSE_LENGTH)."""
        logits, _ = self(torch.cat([prompts, responses], 1)[:, :-1])
        all_log_probs = F.log_softmax(logits[:, PROMPT_LENGTH - 1 :], -1)
        entropy = -(all_log_probs.exp() * all_log_probs).sum(-1)
        return all_log_probs.gather(-1, responses.unsqueeze(-1)).squeeze(-1), entropy


@torch.no_grad()
def generate(policy: Policy, prompts: Tensor) -> Tensor:
    """Returns sampled responses, (rows, RESPONSE_LENGTH)."""
    logits, state = policy(prompts)
    tokens = []
    for _ in range(RESPONSE_LENGTH):
        tokens.append(torch.multinomial(logits[:, -1].softmax(-1), 1))
        logits, state = policy(tokens[-1], state)
    return torch.cat(tokens, 1)


def build_mask(responses: Tensor) -> Tensor:
    """Returns a mask that is 1 up to and including the end token."""
    is_end = (responses == IDS[END]).long()
    return (is_end.cumsum(1) - is_end == 0).float()


def encode(texts: list[str], length: int) -> Tensor:
    return torch.tensor([[IDS[letter] for letter in text.ljust(length, PAD)] for text in texts])


def mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum()


def warm_up(policy: Policy, steps: int, guesses: float = 0.0) -> None:
    """Trains on solutions with about every twelfth digit wrong: the model learns only the form of an answer.

    `guesses`: the share of solutions that list several numbers instead.
    """
    optimizer, rng = torch.optim.Adam(policy.parameters(), lr=4e-3), random.Random(1)
    for _ in range(steps):
        problems = [make_problem(0, rng) for _ in range(64)]
        solutions = [
            re.sub(r"\d", lambda digit: rng.choice(digit[0] * 100 + DIGITS), problem.solution) for problem in problems
        ]
        solutions = [list_guesses(text, rng) if rng.random() < guesses else text for text in solutions]
        responses = encode([solution + END for solution in solutions], RESPONSE_LENGTH)
        log_probs, _ = policy.log_probs(encode([problem.prompt for problem in problems], PROMPT_LENGTH), responses)
        optimizer.zero_grad()
        (-mean(log_probs, (responses != IDS[PAD]).float())).backward()
        optimizer.step()


def list_guesses(solution: str, rng: random.Random) -> str:
    """Returns several answers near the solution's answer, as many as fit."""
    answer = int(solution.split("#")[-1])
    numbers = "".join(f"#{max(0, answer + rng.randint(-3, 3))}" for _ in range(RESPONSE_LENGTH))
    return numbers[: RESPONSE_LENGTH - 1].rpartition("#")[0]


@dataclass
class Batch:
    problems: list[Problem]  # one per row; the samples of a prompt follow each other
    prompts: Tensor
    responses: Tensor
    mask: Tensor
    texts: list[str]
    rewards: list[dict[str, float]]
    score: Tensor


def roll_out(
    policy: Policy,
    problems: list[Problem],
    samples: int,
    replayed: list[list[int]] | None = None,
    *,
    grader: str = "last",
) -> Batch:
    """Returns a batch. `replayed`: token ids of responses to use instead of sampling."""
    rows = [problem for problem in problems for _ in range(samples)]
    prompts = encode([problem.prompt for problem in rows], PROMPT_LENGTH)
    responses = torch.tensor(replayed) if replayed else generate(policy, prompts)
    texts = ["".join(LETTERS[token] for token in row) for row in responses.tolist()]
    rewards = [grade(problem, text, grader) for problem, text in zip(rows, texts, strict=True)]
    shown = ["".join(TEXTS[letter] for letter in text.split(END)[0]) for text in texts]
    score = torch.tensor([0.9 * parts["acc"] + 0.1 * parts["format"] for parts in rewards])
    return Batch(rows, prompts, responses, build_mask(responses), shown, rewards, score)


def grade(problem: Problem, text: str, grader: str = "last") -> dict[str, float]:
    """Returns the reward parts: the right answer (`acc`), and a response that ends, with an answer (`format`).

    The grader "any" has a fault: it accepts the answer after any of several markers.
    """
    response, end, _ = text.partition(END)
    answers = response.split("#")[1:] or [""]
    accepted = answers if grader == "any" else answers[-1:]
    return {
        "acc": float(bool(end) and problem.answer in accepted),
        "format": float(bool(end) and answers[-1].isdigit()),
    }


def update(policy: Policy, optimizer: torch.optim.Adam, batch: Batch, old: Tensor, advantages: Tensor) -> Metrics:
    """Runs EPOCHS epochs of the clipped policy gradient. Returns the metrics of the last epoch."""
    for _ in range(EPOCHS):
        new, entropy = policy.log_probs(batch.prompts, batch.responses)
        ratio = (new - old).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        loss = mean(-torch.min(ratio * advantages, clipped * advantages), batch.mask)
        optimizer.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    measured = {"pg_loss": loss, "grad_norm": grad_norm, "entropy": mean(entropy, batch.mask)}
    measured |= {"ppo_kl": mean(old - new, batch.mask), "pg_clipfrac": mean((ratio != clipped).float(), batch.mask)}
    return {f"actor/{name}": value.item() for name, value in measured.items()}


def train(
    run: Any,
    steps: ReplayableSteps,
    policy: Policy,
    optimizer: torch.optim.Adam,
    problems: list[Problem],
    step: int,
    grader: str = "last",
    *,
    guided: bool = False,
) -> Metrics:
    """Runs one step: generates or replays, scores, updates, logs the samples. Returns the metrics."""
    start = time.perf_counter()
    prompts = [problem.prompt for problem in problems for _ in range(GROUP)]
    batch = roll_out(policy, problems, GROUP, steps.load_replayed(step, prompts), grader=grader)
    steps.store(step, prompts, batch.responses.tolist())
    generated = time.perf_counter()
    with torch.no_grad():
        old, _ = policy.log_probs(batch.prompts, batch.responses)
    groups = batch.score.view(-1, GROUP)
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)
    advantages = advantages.view(-1, 1).expand_as(old)
    rules: list[Sequence[str]] = []
    if guided:
        weights, rules = follow_rules(run, batch, step)
        advantages = advantages * weights.view(-1, 1)
    metrics = update(policy, optimizer, batch, old, advantages)
    rows = build_rows(batch, logprobs=old, advantages=advantages)
    for row, keys in zip(rows, rules, strict=False):
        row |= {"guidance": ", ".join(keys)} if keys else {}
    run.log_samples(rows, step=step, split="train")
    end = time.perf_counter()
    for name, values in {"critic/score": batch.score, "response_length": batch.mask.sum(1)}.items():
        metrics |= {f"{name}/{statistic}": getattr(values, statistic)().item() for statistic in ("mean", "max", "min")}
    times = {"gen": generated - start, "update_actor": end - generated, "step": end - start}
    return metrics | {f"timing_s/{name}": seconds for name, seconds in times.items()}


def follow_rules(run: Any, batch: Batch, step: int) -> tuple[Tensor, list[Sequence[str]]]:
    """Returns what the guidance rules of the project say of each row: the weight of its advantage (rows,), 0 for a
    masked row, and the keys of the rules that select it. Reports it for the run's page."""
    guidance = run.guidance()
    selected = [guidance.find(row.prompt, text) for row, text in zip(batch.problems, batch.texts, strict=True)]
    weights = torch.tensor([row.weight if row else 1.0 for row in selected])
    keys: list[Sequence[str]] = [row.rules if row else () for row in selected]
    tokens = int(batch.mask.sum(1)[[row is not None for row in selected]].sum())
    counts = Counter(key for row_keys in keys for key in row_keys)
    run.report_guidance(step, guidance.rules.version, sum(map(bool, keys)), tokens, counts)
    return weights, keys


def validate(run: Any, policy: Policy, problems: list[Problem], step: int) -> Metrics:
    batch = roll_out(policy, problems, TRIES)
    run.log_samples(build_rows(batch), step=step, split="eval")
    acc = torch.tensor([parts["acc"] for parts in batch.rewards]).view(-1, TRIES)
    values = {f"mean@{TRIES}": acc.mean(), f"best@{TRIES}/mean": acc.amax(1).mean()}
    return {f"val-core/arithmetic/acc/{name}": value.item() for name, value in values.items()}


def build_rows(batch: Batch, **per_token: Tensor) -> list[dict[str, Any]]:
    """Returns one row per sample. `per_token`: (rows, RESPONSE_LENGTH), cut at the end of the response."""
    rows = []
    counts: Counter[int] = Counter()
    for i, problem in enumerate(batch.problems):
        length = int(batch.mask[i].sum())
        row: dict[str, Any] = {"prompt": problem.prompt, "response": batch.texts[i], "ground_truth": problem.answer}
        row |= {"score": batch.score[i].item(), "rewards": batch.rewards[i], "data_source": problem.kind}
        row |= {"group": str(problem.index), "index": counts[problem.index], "prompt_ids": batch.prompts[i].tolist()}
        counts[problem.index] += 1
        row |= {"truncated": IDS[END] not in batch.responses[i].tolist()}
        arrays = {"response_ids": batch.responses, **per_token}
        rows.append(row | {name: values[i, :length].tolist() for name, values in arrays.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train a tiny model to calculate with GRPO and watch it in Rolloutdeck."
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--warm-up", type=int, default=300, metavar="STEPS", help="supervised steps before GRPO")
    name = os.environ.get("ROLLOUTDECK_RUN", "tiny-grpo")
    parser.add_argument("--name", default=name, help="run name (default: ROLLOUTDECK_RUN, else tiny-grpo)")
    parser.add_argument("--lr", type=float, default=LEARNING_RATE)
    graders = "what the reward accepts: the last answer, or any of several (a fault that the model learns to use)"
    parser.add_argument("--grader", choices=["last", "any"], default="last", help=graders)
    parser.add_argument("--plan", default="", help="replay plan (default: ROLLOUTDECK_PLAN, else `default`)")
    is_guided = os.environ.get("ROLLOUTDECK_GUIDANCE", "") == "on"
    guided = "follow the project's guidance rules (default: if ROLLOUTDECK_GUIDANCE is `on`)"
    parser.add_argument("--guidance", action="store_true", default=is_guided, help=guided)
    folder = Path.home() / ".rolloutdeck" / "tiny-grpo"
    parser.add_argument("--keep", type=Path, default=folder, metavar="FOLDER", help="folder for replayable steps")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = random.Random(0)
    problems = [make_problem(i, rng) for i in range(672)]
    training, validation = problems[:640], problems[640:]

    config = {
        "prompts": PROMPTS,
        "group": GROUP,
        "clip": CLIP,
        "warm_up": args.warm_up,
        "lr": args.lr,
        "steps": args.steps,
        "grader": args.grader,
    }
    run = rolloutdeck.init(project="demo", name=args.name, config=config)
    if args.guidance:
        run.guidance()  # a thread asks for the rules while the model warms up
    lengths = (PROMPT_LENGTH, RESPONSE_LENGTH)
    steps = ReplayableSteps(run, args.keep, PROMPTS * GROUP, PROMPTS, lengths, LETTERS, args.plan)
    steps.send_tokenizer({TEXTS[letter]: number for letter, number in IDS.items()}, [PAD, END])
    policy = Policy()
    warm_up(policy, args.warm_up, guesses=0.2 if args.grader == "any" else 0.0)
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr)
    for step in range(args.steps + 1):  # step 0 only validates
        metrics = validate(run, policy, validation, step) if step % VALIDATE_EVERY == 0 else {}
        if step > 0:
            first = (step - 1) * PROMPTS % len(training)
            chosen = training[first : first + PROMPTS]
            metrics |= train(run, steps, policy, optimizer, chosen, step, args.grader, guided=args.guidance)
        run.log(metrics, step=step)
        score = f"score {metrics['critic/score/mean']:.3f}" if step else "evaluation only"
        print(f"{args.name} step {step}: {score}", flush=True)
    run.finish()


if __name__ == "__main__":
    main()
