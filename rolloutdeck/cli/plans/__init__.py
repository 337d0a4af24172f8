"""The commands `plan` and `pull`: what a replay plan will do, and its files for a trainer that loads folders.

Depends on: the other modules of `rolloutdeck.cli`, replay and the API of trainers.
Invariant: `plan` changes nothing on the server, except for the prompts that `--prompts` sends.
"""

__all__: list[str] = []
