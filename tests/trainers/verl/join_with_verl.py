"""Run by the trainers' environment: verl's own union of a live batch with each dump of argv, as V0's fit() does.

A word of argv is `same:PATH` (the live batch is that of the dump's own step, with fresh uids) or `moved:PATH` (it is
another step's). Prints a line each: `joined` and whether the live columns stayed, or the assertion that ends the run.
"""

import sys

import numpy as np
import torch
from verl import DataProto


def build_column(values):
    result = np.empty(len(values), dtype=object)
    result[:] = values
    return result


def build_live_batch(moved):
    truth = [{"style": "rule", "ground_truth": str(2 * (row // 2) + 40 * moved)} for row in range(4)]
    columns = {
        "uid": build_column([f"fresh-{row // 2}" for row in range(4)]),
        "data_source": build_column(["code" if moved else "math"] * 4),
        "reward_model": build_column(truth),
        "extra_info": build_column([{"index": row // 2 + 7 * moved, "split": "train"} for row in range(4)]),
    }
    return DataProto.from_dict(tensors={"dummy_tensor": torch.zeros(4, 1)}, non_tensors=columns)


for word in sys.argv[1:]:
    when, _, path = word.partition(":")
    batch = build_live_batch(moved=when == "moved")
    own = dict(batch.non_tensor_batch)
    try:
        joined = batch.union(DataProto.load_from_disk(path))
        print(
            "joined", "responses" in joined.batch, all(joined.non_tensor_batch[name] is own[name] for name in ["uid"])
        )
    except AssertionError as error:
        print(error)
