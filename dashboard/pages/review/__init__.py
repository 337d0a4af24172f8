"""Review queues and review decisions. Start in `views.py`, then `queue_list.py`."""
