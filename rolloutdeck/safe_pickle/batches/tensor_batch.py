"""Reads SkyRL's TensorBatch, the training batch that `TensorBatch.save` pickles: a dict of tensors and metadata.

Its state is `{"batch_dict", "batch_size", "device", "metadata"}`. A tensor is `{"format": "numpy", "data", "shape",
"dtype"}`, or bytes of `torch.save`: of types that numpy does not have (`"format": "torch"`), in older versions of all
types. In these the pickle also has each tensor as an item of the dict. Images (`"format": "tensor_list"`) are not read.
Source: skyrl/backends/skyrl_train/training_batch.py, NovaSky-AI/SkyRL a9564572, and its history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolloutdeck.safe_pickle import load
from rolloutdeck.safe_pickle.batches.fields import DenseField, TensorField, build_dense_field
from rolloutdeck.safe_pickle.batches.layouts import MAX_ROWS, BatchContents, build_source, check_row_counts
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSource


def read_tensor_batch(source: ByteSource) -> BatchContents:
    """Returns the parts of a batch; tensors that cannot be read are columns. Raises SafePickleError."""
    value = load.load_pickle(source)
    if not isinstance(value, load.TensorBatch) or value.state is None:
        raise SafePickleError("it does not contain a training batch of SkyRL")
    saved, rows, meta = (value.state.get(name) for name in ("batch_dict", "batch_size", "metadata"))
    if not isinstance(saved, dict) or type(rows) is not int or not 0 <= rows <= MAX_ROWS:
        raise SafePickleError("a training batch without its tensors or its number of rows")
    tensors: dict[str, TensorField] = {}
    columns: dict[str, Any] = {}
    values: dict[int, Any] = {}
    for name, tensor in saved.items():
        if tensor is None:
            continue
        try:
            tensors[str(name)] = _read_tensor(tensor, values)
        except SafePickleError as error:
            columns[str(name)] = load.Unreadable(str(error))
    contents = BatchContents("tensor_batch", rows, tensors, columns, meta if isinstance(meta, dict) else {})
    return check_row_counts(contents)


def _read_tensor(tensor: Any, values: dict[int, Any]) -> DenseField:
    """`values`: id of the bytes -> what they contain. Tensors can share their bytes, which are read once."""
    data = tensor.get("data") if isinstance(tensor, dict) else tensor
    if not isinstance(data, load.Data):
        raise SafePickleError("a tensor without its bytes")
    if isinstance(tensor, dict) and tensor.get("format", "numpy") == "numpy":
        return _build_field(tensor, data)
    if id(data) not in values:
        values[id(data)] = load.Unreadable("bytes that can't be read")  # stays if the next line raises
        values[id(data)] = load.load_archive(build_source(data))
    value = values[id(data)]
    if not isinstance(value, load.Tensor):
        raise SafePickleError("bytes that are not a tensor")
    return build_dense_field(value)


def _build_field(tensor: Mapping[Any, Any], data: load.Data) -> DenseField:
    dtype, shape = tensor.get("dtype"), tensor.get("shape")
    if not isinstance(dtype, str) or not isinstance(shape, tuple):
        raise SafePickleError("a tensor without its type and shape")
    return DenseField(dtype, shape, data)
