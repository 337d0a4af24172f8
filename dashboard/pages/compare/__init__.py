"""The comparison of two to six steps."""
