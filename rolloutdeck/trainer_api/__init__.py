"""What the trainer side knows of each trainer.

`types` says what a trainer's module is made of. `registry` finds a trainer by its name or by the format of its files.
The trainers themselves are in `rolloutdeck.trainers`; they are imported only when somebody asks for one.
Depends on `replay` (types only). A field that a trainer lacks is a type error, never a silent default.
"""
