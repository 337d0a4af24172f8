"""CURE: outputs of its stages, what its trainer gets, and its results."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from tests.rollouts.formats.independent.rows import Rows, number

# Keys whose values belong to one sample, and the tests of the data set, which every program has in its table.
PER_SAMPLE = re.compile(
    "(full_)?(code|case)_(generation|response|input|output|text).*|generated_code|all_case_.*|test_(input|output)|num_.*"
)


def read_outputs(path: Path) -> Rows:
    rows: Rows = []
    for task in json.loads(path.read_text()):
        given, table = task["num_ground_truth_test"], task.get("all_case_bool_table")
        cases = [
            {"input": asked, "output": answer}
            for asked, answer in zip(task["all_case_input"], task["all_case_output"], strict=True)
        ]
        right = [all(results[:given]) for results in table or ()]
        common = {key: value for key, value in task.items() if not PER_SAMPLE.fullmatch(key)}
        common["task"] = hashlib.sha256(task["question"].encode()).hexdigest()[:12]
        for place, response in enumerate(task["full_code_generation"]):
            row: dict[str, Any] = {
                "prompt": task["code_generation_prompt"], "response": response, "index": place,
                "group": ("coder", task["question"]), "data_source": "CodeContests",
            }  # fmt: skip
            extras = {
                **common,
                "role": "coder",
                "response_length": task["code_response_length"][place],
                "generated_code": task["generated_code"][place],
            }
            if table:
                passed = table[place]
                printed = task["all_case_exe_results"][place]
                extras["tests"] = {"passed": passed, "given": given, "cases": cases, "printed": printed}
                row["score"] = sum(passed[:given]) / given
                row["rewards"] = {"acc": float(all(passed[:given]))}
                row["ground_truth"] = cases[:given]
            rows.append({**row, "extras": extras})
        for place, response in enumerate(task["full_case_generation"]):
            row = {
                "prompt": task["case_generation_prompt"], "response": response, "index": place,
                "group": ("tester", task["question"]), "data_source": "CodeContests",
            }  # fmt: skip
            keys = ("case_input", "case_output", "case_text")
            extras = {**common, "role": "tester", "response_length": task["case_response_length"][place]}
            extras |= {key: task[key][place] for key in keys}
            if table:
                extras["passed_by"] = [results[given + place] for results in table]
                if any(right):
                    row |= score_test(extras["passed_by"], right)
            rows.append({**row, "extras": extras})
    return rows


def score_test(passed: list[bool], right: list[bool]) -> dict[str, Any]:
    """As reward.py: a test that every right program passes is worth the share of wrong programs that it fails. Another
    test costs the share of wrong programs that it lets pass."""
    valid = all(ok for ok, is_right in zip(passed, right, strict=True) if is_right)
    wrong = [ok for ok, is_right in zip(passed, right, strict=True) if not is_right]
    if valid:
        share = sum(not ok for ok in wrong) / len(wrong) if wrong else 1.0
    else:
        share = -(sum(wrong) / len(wrong) if wrong else 1.0)
    return {"score": share, "rewards": {"acc": float(valid)}}


def read_data(path: Path) -> Rows:
    role = {"rl_code_data.json": "coder", "rl_case_data.json": "tester"}[path.name]
    return [
        {
            "prompt": row["prompt"],
            "response": row["response"].removesuffix("<|im_end|>"),
            "truncated": not row["response"].endswith("<|im_end|>"),  # reward.py adds it below the length limit
            "advantages": [number(row["reward"])],
            "group": row["prompt"],
            "extras": {"role": role},
        }
        for row in json.loads(path.read_text())
    ]


def read_results(path: Path) -> Rows:
    steps: list[dict[str, Any]] = []
    setting = ""
    for line in path.read_text().splitlines():
        if line.startswith("code response length"):
            steps.append({})
        if line.startswith("BoN setting "):
            setting = f"BoN {line.removeprefix('BoN setting ').removesuffix(':')}/"
            continue
        for part in line.split(", "):
            if ": " in part:
                key, value = part.split(": ")
                name = re.sub(r"\b(estimated|average) |\s*\([^()]*\)", "", key).strip().replace("unit test", "case")
                name = re.sub(r"^(code|case) ", r"\1/", name)
                steps[-1][(setting if line.startswith("acc:") else "") + name] = number(value)
    return [{"metrics_of": step, "values": values} for step, values in enumerate(steps)]


READERS = [
    (r"/outputs-(?:rl|eval)-[^/]*\.json$", read_outputs),
    (r"/rl_(?:code|case)_data\.json$", read_data),
    (r"/results-(?:rl|eval)-[^/]*\.txt$", read_results),
]
