"""The feed of the newest steps."""
