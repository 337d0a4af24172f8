"""The vocabulary of the stand-in model: the place of a word is its token id. Read by both environments."""

WORDS = ["<pad>", "<eos>", "What", "is", "plus", "?", "sum", "wrong", *map(str, range(30))]
