"""One module or folder per trainer: finds, checks, records and replays its files.

The name of a trainer occurs only here and in the other places that docs/architecture.md lists.
"""
