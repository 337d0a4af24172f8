"""The server-rendered pages: one folder per feature, shared parts in `common/`.

Invariant: a feature imports another feature only as the layers contract in pyproject.toml lists.
"""
