"""One module or folder per trainer: finds, checks, records and replays its files.

The name of a trainer occurs only here, in its format module, in the safe pickle rules, their tests and the docs.
"""
