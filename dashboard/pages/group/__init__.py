"""The group of a prompt in one step, and the matrix of unit tests."""
