"""Opens a saved batch of verl, ROLL or SkyRL. Nothing of it is executed, and values are read only when requested."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any

from rolloutdeck.safe_pickle.batches import fields, plain_values
from rolloutdeck.safe_pickle.batches.fields import TensorInfo
from rolloutdeck.safe_pickle.batches.layouts import BatchContents, read_batch_contents, read_roll_contents
from rolloutdeck.safe_pickle.batches.plain_values import MAX_PLAIN_VALUES, PlainConverter
from rolloutdeck.safe_pickle.batches.tensor_batch import read_tensor_batch
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSource

if TYPE_CHECKING:
    import numpy as np

MAX_TOKENS = 4 << 20  # of one row, which are Python numbers in memory
RESPONSE_FIELDS = ("response_mask", "rollout_log_probs", "rm_scores")
PADDING_KEY = re.compile(r"pad[0-9a-f]*_\d+_\d+\Z")  # keys of the padding rows of V1


@contextmanager
def open_batch(path: str | os.PathLike[str]) -> Iterator[RolloutBatch]:
    """Opens `gen_batch.dp`, `tq_batch.pt`, `new_batch.dp`, or the single file of verl <= 0.7.

    The batch reads from the file until the block ends. Raises OSError, and SafePickleError for any other file.
    """
    with ByteSource.open(path) as source:
        yield RolloutBatch(read_batch_contents(source))


@contextmanager
def open_roll_batch(path: str | os.PathLike[str]) -> Iterator[RolloutBatch]:
    """Like `open_batch`, for a DataProto of ROLL. Read its tensors, which have other names, by `numbers`."""
    with ByteSource.open(path) as source:
        yield RolloutBatch(read_roll_contents(source))


class BatchColumns(Mapping[str, list[Any]]):
    """The columns that are not tensors: name -> a plain value per row, converted again at each access."""

    def __init__(self, contents: BatchContents) -> None:
        self._contents = contents
        self._value_counts: dict[str, int] = {}  # per column, so that the limit applies to all columns together

    def __getitem__(self, name: str) -> list[Any]:
        raw = self._contents.columns[name]
        other_values = sum(count for column, count in self._value_counts.items() if column != name)
        converter = PlainConverter(MAX_PLAIN_VALUES - other_values)
        try:
            return plain_values.convert_column(raw, self._contents.rows, converter)
        finally:
            self._value_counts[name] = converter.value_count

    def __iter__(self) -> Iterator[str]:
        return iter(self._contents.columns)

    def __len__(self) -> int:
        return len(self._contents.columns)


@contextmanager
def open_tensor_batch(path: str | os.PathLike[str]) -> Iterator[RolloutBatch]:
    """Opens a training batch of SkyRL. Raises OSError, and SafePickleError for any other file."""
    with ByteSource.open(path) as source:
        yield RolloutBatch(read_tensor_batch(source))


class RolloutBatch:
    """A rollout dump. `format`: gen_batch, new_batch or tq_batch. `serialisation`: torch or numpy."""

    def __init__(self, contents: BatchContents) -> None:
        self._contents = contents
        self.format = contents.format
        self.rows = contents.rows
        self.serialisation = contents.serialisation
        self.columns = BatchColumns(contents)

    @cached_property
    def fields(self) -> dict[str, TensorInfo]:
        """Type and shape of each tensor."""
        return {name: tensor.info for name, tensor in self._contents.tensors.items()}

    @cached_property
    def meta(self) -> dict[str, Any]:
        """verl's `meta_info`. For a TransferQueue's batch: everything but its rows, like `global_steps`."""
        converter = PlainConverter(MAX_PLAIN_VALUES)  # one, so that the limit applies to all values together
        return {str(name): converter.convert(value, 0) for name, value in self._contents.meta.items()}

    @cached_property
    def keys(self) -> list[str]:
        """`{uuid}_{session}_{index}` per row of a TransferQueue's batch. Empty for others."""
        converter = PlainConverter(MAX_PLAIN_VALUES)
        return [str(converter.convert(key, 0)) for key in self._contents.keys]

    @cached_property
    def tags(self) -> list[dict[str, Any]]:
        """The queue's tags per row: `status prompt_len response_len seq_len global_steps ...`. Empty for others."""
        return [tag if isinstance(tag, dict) else {} for tag in plain_values.convert_to_plain(self._contents.tags)]

    def is_padding(self, row: int) -> bool:
        """Whether the row is padding, according to its tags or its key. Raises IndexError."""
        if not self.keys:
            return False
        return is_padding_row(self.keys[row], self.tags[row])

    def tensor(self, name: str, row: int | None = None) -> np.ndarray:
        """Returns a field, or an unpadded row of it. Raises KeyError, IndexError; ValueError for a jagged field."""
        tensor = self._contents.tensors[name]
        data, shape = tensor.read_all() if row is None else tensor.read_row(self._check_row(row))
        return fields.decode_array(tensor.dtype, data, shape)

    def column(self, name: str) -> list[Any]:
        """Returns a plain value per row, or an inert `Unreadable`. Raises KeyError and SafePickleError."""
        return self.columns[name]

    def tokens(self, row: int) -> RowTokens:
        """Returns the tokens of a row. Raises IndexError, and SafePickleError if the dump has no tokens."""
        self._check_row(row)
        responses = self._contents.tensors.get("responses")
        return extract_row_tokens(lambda name: self.numbers(name, row), padded=isinstance(responses, fields.DenseField))

    def numbers(self, name: str, row: int) -> list[Any] | None:
        """Returns a row with its padding; None if there is no such field. Raises IndexError, SafePickleError."""
        tensor = self._contents.tensors.get(name)
        if tensor is None:
            return None
        count = math.prod(tensor.get_row_shape(self._check_row(row)))
        if count > MAX_TOKENS:
            raise SafePickleError(f"a row of {count:,} tokens; at most {MAX_TOKENS:,} are read")
        return fields.decode_numbers(tensor.dtype, tensor.read_row(row)[0])

    def _check_row(self, row: int) -> int:
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of {self.rows}")
        return row


def is_padding_row(key: str, tag: Mapping[str, Any]) -> bool:
    """Whether a row of a TransferQueue's batch only fills the batch, according to its key or its tag."""
    return bool(tag.get("is_padding")) or bool(PADDING_KEY.match(key))


@dataclass(frozen=True, slots=True)
class RowTokens:
    """`response_mask` is 1 for tokens of the model and 0 for tokens of a tool.

    All fields except the ids are None if the run did not record them, else as long as `response_ids`.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int] | None = None
    logprobs: list[float] | None = None
    rm_scores: list[float] | None = None


def extract_row_tokens(numbers: Callable[[str], list[Any] | None], padded: bool) -> RowTokens:
    """Returns the tokens of a row without padding. `numbers`: a field's numbers in the row; None without the field.

    Raises SafePickleError if the row has no tokens, or a field of another length than its response.
    """
    prompts, responses = numbers("prompts"), numbers("responses")
    if prompts is None or responses is None:
        raise SafePickleError("the dump has no tokens")
    response_fields = [numbers(name) for name in RESPONSE_FIELDS]
    if any(values is not None and len(values) != len(responses) for values in response_fields):
        raise SafePickleError("a row whose masks or scores are not as long as its response")
    if not padded:
        return RowTokens(prompts, responses, *response_fields)
    length, attention = len(prompts), numbers("attention_mask")
    if attention is None or len(attention) != length + len(responses):
        # Without a usable mask, the complete prompt counts, and the response ends at the last token of the model.
        model_tokens = response_fields[0] if response_fields[0] is not None else [1] * len(responses)
        end = max((at + 1 for at, real in enumerate(model_tokens) if real), default=0)
        attention = [1] * (length + end) + [0] * (len(responses) - end)
    selected = (_select(values, attention[length:]) for values in (responses, *response_fields))
    return RowTokens(_select(prompts, attention[:length]), *selected)


def _select(values: Any, response_mask: list[Any]) -> Any:
    return None if values is None else list(compress(values, response_mask))
