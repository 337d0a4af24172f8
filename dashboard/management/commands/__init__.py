"""Commands of `manage.py`: first start, move to PostgreSQL, backup, integrity check, message catalogues.

Depends on: backup, integrity and models; `rolloutdeck.cli` and `rolloutdeck.up`.
Invariant: each module is a command that Django finds by its name.
"""

__all__: list[str] = []
