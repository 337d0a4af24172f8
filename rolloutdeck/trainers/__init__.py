"""One module or folder per trainer: how its files are found, checked, recorded and replayed.

A trainer's name appears only here, in its format module, in the safe pickle rules, their tests and the docs.
"""
