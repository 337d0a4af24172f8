"""The commands `import` and `watch`: the files in folders become samples of a run.

Depends on: `rolloutdeck.watch`, which finds the files, and `rolloutdeck.client`, which sends them.
Invariant: a file is skipped only with a message that says why.
"""

__all__: list[str] = []
