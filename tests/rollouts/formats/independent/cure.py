"""CURE: outputs of its stages, what its trainer gets, and its results."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from tests.rollouts.formats.independent.rows import Rows, to_number

# Keys whose values belong to one sample, and the tests of the data set, which every program has in its table.
PER_SAMPLE = re.compile(
    "(full_)?(code|case)_(generation|response|input|output|text).*|generated_code|all_case_.*|test_(input|output)|num_.*"
)


def read_outputs(path: Path) -> Rows:
    rows: Rows = []
    for task in json.loads(path.read_text()):
        given_tests, table = task["num_ground_truth_test"], task.get("all_case_bool_table")
        cases = [
            {"input": test_input, "output": test_output}
            for test_input, test_output in zip(task["all_case_input"], task["all_case_output"], strict=True)
        ]
        are_correct = [all(results[:given_tests]) for results in table or ()]
        common = {key: value for key, value in task.items() if not PER_SAMPLE.fullmatch(key)}
        common["task"] = hashlib.sha256(task["question"].encode()).hexdigest()[:12]
        for index, response in enumerate(task["full_code_generation"]):
            row: dict[str, Any] = {
                "prompt": task["code_generation_prompt"], "response": response, "index": index,
                "group": ("coder", task["question"]), "data_source": "CodeContests",
            }  # fmt: skip
            extras = {
                **common,
                "role": "coder",
                "response_length": task["code_response_length"][index],
                "generated_code": task["generated_code"][index],
            }
            if table:
                passed = table[index]
                printed = task["all_case_exe_results"][index]
                extras["tests"] = {"passed": passed, "given": given_tests, "cases": cases, "printed": printed}
                row["score"] = sum(passed[:given_tests]) / given_tests
                row["rewards"] = {"acc": float(all(passed[:given_tests]))}
                row["ground_truth"] = cases[:given_tests]
            rows.append({**row, "extras": extras})
        for index, response in enumerate(task["full_case_generation"]):
            row = {
                "prompt": task["case_generation_prompt"], "response": response, "index": index,
                "group": ("tester", task["question"]), "data_source": "CodeContests",
            }  # fmt: skip
            keys = ("case_input", "case_output", "case_text")
            extras = {**common, "role": "tester", "response_length": task["case_response_length"][index]}
            extras |= {key: task[key][index] for key in keys}
            if table:
                extras["passed_by"] = [results[given_tests + index] for results in table]
                if any(are_correct):
                    row |= score_test(extras["passed_by"], are_correct)
            rows.append({**row, "extras": extras})
    return rows


def score_test(passed: list[bool], are_correct: list[bool]) -> dict[str, Any]:
    """As reward.py: a test that every right program passes is worth the share of wrong programs that it fails. Another
    test costs the share of wrong programs that it lets pass."""
    valid = all(has_passed for has_passed, is_correct in zip(passed, are_correct, strict=True) if is_correct)
    wrong = [has_passed for has_passed, is_correct in zip(passed, are_correct, strict=True) if not is_correct]
    if valid:
        share = sum(not has_passed for has_passed in wrong) / len(wrong) if wrong else 1.0
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
            "advantages": [to_number(row["reward"])],
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
                steps[-1][(setting if line.startswith("acc:") else "") + name] = to_number(value)
    return [{"metrics_of": step, "values": values} for step, values in enumerate(steps)]


READERS = [
    (r"/outputs-(?:rl|eval)-[^/]*\.json$", read_outputs),
    (r"/rl_(?:code|case)_data\.json$", read_data),
    (r"/results-(?:rl|eval)-[^/]*\.txt$", read_results),
]
