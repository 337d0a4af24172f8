"""The points of a sparkline."""


def build_polyline_points(values: list[float]) -> str:
    """An SVG polyline, x up to 100 and y up to 20. The lowest value, or 0, is at the bottom; the highest, or 0, at the
    top."""
    return build_scaled_points(values, min(0.0, *values), max(0.0, *values)) if values else ""


def build_scaled_points(values: list[float], low: float, high: float) -> str:
    """The same with `low` at the bottom and `high` at the top, for several lines on one scale."""
    if not values:
        return ""
    values = values if len(values) > 1 else values * 2
    heights = [19 - 18 * (value - low) / ((high - low) or 1.0) for value in values]
    return " ".join(f"{100 * at / (len(values) - 1):.1f},{y:.1f}" for at, y in enumerate(heights))
