"""The live feed of the newest steps. Start in `views.py`. `dashboard.consumers` updates open pages."""
