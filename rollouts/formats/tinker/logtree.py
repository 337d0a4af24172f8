"""tinker-cookbook's `iteration_{N:06d}/{train|eval_…}_logtree.json`: the texts of some groups, as a tree of HTML.

A section `Group Rollout` has what its environments logged, in the order in which they finished, and at its end the
sections `Trajectory Details` with the lengths and rewards of all trajectories, in their own order:

- sections `Prompt`, `Policy Response` and a table with the reward (`ProblemEnv`);
- a section `Prompt` and sections `Completion {index}` (preference environments);
- paragraphs `Problem: …`, `Response: …` and `…, Reward: 1.00`.

Only a section `Completion` has the index of its trajectory. The others get the trajectory with the same reward; of
several with the same reward, the longest text gets the one with the most tokens. A text without a reward of its own
whose group has different rewards is skipped and counted. Numbers have the three decimals of the file. Source:
`do_group_rollout` in tinker_cookbook/rl/rollouts.py, `ProblemEnv.step` in rl/problem_env.py, `compute_group_rewards` in
rl/preference_envs.py, `Node.to_dict` in utils/logtree.py, thinking-machines-lab/tinker-cookbook 9dfcc3a2.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import BROKEN_UTF8, chat, read_json_document
from rollouts.formats.tinker.assign_texts import LoggedText, LoggedTrajectory, assign_texts
from rollouts.formats.tinker.trajectory_key import GroupNamer
from rollouts.formats.tinker.tree import TreeItem, iterate_tree
from rollouts.samples import LineProblem, Record, SkippedRow, to_float, to_text

name = "tinker-logtree"

FILE = re.compile(r"_logtree\.json\Z")
GROUP_TITLE, DETAILS_TITLE = "Group Rollout", "Trajectory Details"
TRAJECTORY_TITLE = re.compile(r"Trajectory (\d{1,9}) Episode\Z")
COMPLETION_TITLE = re.compile(r"Completion (\d{1,9})\Z")
PROMPT_TEXT, RESPONSE_TEXT = "Problem: ", "Response: "
REWARD_KEYS = ("reward", "total_reward")
REWARD_TEXT = re.compile(r"Reward: (-?\d+(?:\.\d+)?)\Z")
GROUND_TRUTH_KEYS = ("reference_answer", "ground_truth", "answer")
UNASSIGNED = "a text that cannot be assigned to its trajectory: the file does not state its reward"


def sniff(filename: str, head: bytes) -> bool:
    return bool(FILE.search(filename)) and b'"lt-root"' in head


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    document, is_utf8 = read_json_document(stream)
    root = document.get("root") if isinstance(document, dict) else None
    if not isinstance(root, dict):
        raise UnreadableDumpError("It is not a log of rollouts: it has no object `root`.")
    if not is_utf8:
        yield LineProblem(1, BROKEN_UTF8, repaired=True)
    namer, count = GroupNamer(), 0
    for group, items in groupby(iterate_tree(root), key=find_group):
        if group is not None:
            for record in read_group(list(items), namer):
                count += 1
                yield record
    if not count:
        yield SkippedRow("a log without a rollout")


def find_group(item: TreeItem) -> int | None:
    """Returns the number of the section of a group that the item is in."""
    return next((section.number for section in item.path if section.title == GROUP_TITLE), None)


def read_group(items: list[TreeItem], namer: GroupNamer) -> Iterator[Record | SkippedRow]:
    details = [item for item in items if item.is_in(DETAILS_TITLE)]
    trajectories = read_trajectories(details)
    texts = read_texts([item for item in items if not item.is_in(DETAILS_TITLE)])
    if not trajectories:  # the group failed after its answers
        yield from (build_record(text, None, "") for text in texts)
        return
    group = namer.name_group([trajectory.numbers for trajectory in trajectories])
    for text, trajectory in assign_texts(texts, trajectories):
        yield build_record(text, trajectory, group) if trajectory else SkippedRow(UNASSIGNED)


def read_trajectories(items: list[TreeItem]) -> list[LoggedTrajectory]:
    """Returns the trajectories of a group, in their order."""
    trajectories: dict[int, LoggedTrajectory] = {}
    for item in items:
        match = next((match for section in item.path if (match := TRAJECTORY_TITLE.match(section.title))), None)
        if match is None or item.table is None:
            continue
        trajectory = trajectories.setdefault(int(match[1]), LoggedTrajectory(int(match[1])))
        if "step_reward" in item.table:
            trajectory.add_turn(item.table)
        elif "total_return" in item.table:
            trajectory.set_totals(item.table)
        else:
            trajectory.metrics |= item.table
    return [trajectories[index] for index in sorted(trajectories)]


def read_texts(items: list[TreeItem]) -> list[LoggedText]:
    """Returns the texts that the environments of a group logged, with what follows them until the next prompt."""
    texts: list[LoggedText] = []
    prompt: list[dict[str, object]] = []
    for item in items:
        title = item.path[-1].title
        completion = COMPLETION_TITLE.match(title)
        if item.messages is not None and title == "Prompt":
            prompt = item.messages
        elif item.text.startswith(PROMPT_TEXT):
            prompt = [{"role": "user", "content": item.text.removeprefix(PROMPT_TEXT)}]
        elif item.messages is not None:
            texts.append(LoggedText(prompt, item.messages, int(completion[1]) if completion else None))
        elif item.text.startswith(RESPONSE_TEXT):
            answer = {"role": "assistant", "content": item.text.removeprefix(RESPONSE_TEXT)}
            texts.append(LoggedText(prompt, [answer], None))
        elif texts:
            texts[-1].values |= item.table or {}
            if match := REWARD_TEXT.search(item.text):
                texts[-1].values["reward"] = match[1]
    for text in texts:
        text.reward = next((to_float(text.values[key]) for key in REWARD_KEYS if key in text.values), None)
    return texts


def build_record(text: LoggedText, trajectory: LoggedTrajectory | None, group: str) -> Record:
    messages = [*text.prompt, *text.answer]
    record = Record(chat.render_prompt(text.prompt), chat.render_response(text.answer), messages)
    if not text.prompt:
        record.prompt, record.response = chat.render_conversation(messages)
    values = dict(text.values)
    record.ground_truth = next((to_text(values.pop(key)) for key in GROUND_TRUTH_KEYS if key in values), None)
    record.score = text.reward
    if trajectory:
        record.score = trajectory.total
        record.group, record.index, record.trajectory = group, trajectory.index, f"{group}/{trajectory.index}"
        record.rewards = {key: to_float(value) for key, value in trajectory.metrics.items()}
        record.extras["lengths"] = {"prompt": trajectory.turns[0][0], "response": trajectory.turns[-1][1]}
    record.extras |= {"logged": values} if values else {}
    return record
