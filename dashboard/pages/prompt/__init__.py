"""One prompt over steps, attempts and runs. Start in `views.py`, then `history_chart.py`."""
