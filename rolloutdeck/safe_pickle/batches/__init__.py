"""Reads the batches of trainers: fields, rows, token ids and plain values.

Depends on: `stream` and `load`; numpy only where an array is requested.
Invariant: a row is read only when it is requested, and the number of values per file is limited.
"""

from rolloutdeck.safe_pickle.batches.batch import (
    PADDING_KEY,
    RolloutBatch,
    RowTokens,
    is_padding_row,
    open_batch,
    open_roll_batch,
    open_tensor_batch,
)
from rolloutdeck.safe_pickle.batches.fields import (
    DenseField,
    JaggedField,
    SeparateField,
    TensorField,
    build_dense_field,
    build_jagged_field,
    read_consolidated_fields,
)
from rolloutdeck.safe_pickle.batches.layouts import (
    CONSOLIDATED_METADATA_KEYS,
    BatchContents,
    build_proto_contents,
    build_source,
    load_data_proto,
    read_batch_contents,
    read_roll_contents,
)
from rolloutdeck.safe_pickle.batches.plain_values import TooManyValuesError
from rolloutdeck.safe_pickle.batches.torch_dict import RowConverter, open_torch_dict
from rolloutdeck.safe_pickle.load import Picture

__all__ = [
    "BatchContents", "CONSOLIDATED_METADATA_KEYS", "DenseField", "JaggedField", "PADDING_KEY", "Picture",
    "RolloutBatch", "RowConverter", "RowTokens", "SeparateField", "TensorField", "TooManyValuesError",
    "build_dense_field", "build_jagged_field", "build_proto_contents", "build_source", "is_padding_row",
    "load_data_proto", "open_batch", "open_roll_batch", "open_tensor_batch", "open_torch_dict", "read_batch_contents",
    "read_consolidated_fields", "read_roll_contents",
]  # fmt: skip
