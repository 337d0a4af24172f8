"""Readers of file types that several formats share."""
