"""Commands of `manage.py`.

Depends on: nothing.
Invariant: it is only the folder in which Django looks for `commands/`.
"""

__all__: list[str] = []
