"""Reads a pickle without running it: an interpreter that builds only placeholders and plain values.

Depends on: `stream`.
Invariant: no global of the pickle is imported or called; an unknown one becomes an inert `Unreadable`.
"""

from rolloutdeck.safe_pickle.load.interpreter import load_archive, load_pickle
from rolloutdeck.safe_pickle.load.pictures import Picture, find_encoded_picture
from rolloutdeck.safe_pickle.load.placeholders import (
    Array,
    Buffer,
    Consolidated,
    Data,
    Datum,
    Dtype,
    Name,
    Nested,
    Piece,
    Proto,
    Rollout,
    Scalar,
    Size,
    Stack,
    Storage,
    Tensor,
    TensorBatch,
    Tree,
    Unreadable,
    count_elements,
    read_byte_range,
    read_bytes_into,
)
from rolloutdeck.safe_pickle.stream import DTYPE_SIZES

__all__ = [
    "Array", "Buffer", "Consolidated", "DTYPE_SIZES", "Data", "Datum", "Dtype", "Name", "Nested", "Picture", "Piece",
    "Proto", "Rollout", "Scalar", "Size", "Stack", "Storage", "Tensor", "TensorBatch", "Tree", "Unreadable",
    "count_elements", "find_encoded_picture", "load_archive", "load_pickle", "read_byte_range", "read_bytes_into",
]  # fmt: skip
