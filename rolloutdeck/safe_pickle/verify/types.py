"""What a rule needs of the verifier that calls it."""

from __future__ import annotations

from typing import Protocol

from rolloutdeck.safe_pickle.stream import TorchArchive
from rolloutdeck.safe_pickle.verify.abstract_values import AbstractBytes, AbstractValue


class Verifier(Protocol):
    """One pickle that is verified. `archive` is the ZIP around it; `storages`: key -> type and size of each."""

    archive: TorchArchive | None
    storages: dict[str, tuple[str, int]]

    def embedded(self, data: AbstractBytes) -> AbstractValue:
        """What a torch archive inside this pickle would build. Raises SafePickleError when it is no canonical
        archive."""
