"""One module or folder per trainer: finds, checks, records and replays its files.

Depends on: `rolloutdeck.trainer_api`; plug-ins on `rolloutdeck.client`.
Invariant: the name of a trainer occurs only here and in the places that docs/architecture.md lists.
"""

__all__: list[str] = []
