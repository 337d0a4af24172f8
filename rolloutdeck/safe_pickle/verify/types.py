"""The part of the verifier that the rules use."""

from __future__ import annotations

from typing import Protocol

from rolloutdeck.safe_pickle.stream import TorchArchive
from rolloutdeck.safe_pickle.verify.abstract_values import AbstractBytes, AbstractValue


class Verifier(Protocol):
    """The verifier of one pickle. `archive` is the ZIP around it; `storages`: key -> type and size of each."""

    archive: TorchArchive | None
    storages: dict[str, tuple[str, int]]

    def verify_embedded(self, data: AbstractBytes) -> AbstractValue:
        """Returns what a torch archive inside this pickle would build.

        Raises SafePickleError if it is not a canonical archive.
        """
