"""Review queues and review decisions."""
