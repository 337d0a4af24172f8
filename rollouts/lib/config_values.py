"""Values of nested configurations: flat keys, and which values are equal."""

from collections.abc import Mapping
from typing import Any, Final

MAX_DEPTH: Final = 50
Missing = type("Missing", (), {"__repr__": lambda self: "missing"})
MISSING: Final = Missing()  # a key that a configuration does not have; null is a value


def flatten_config(config: Any, depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Returns {`actor.optim.lr`: value} of nested dictionaries. Lists and empty dictionaries are values."""
    flat: dict[str, Any] = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict) and value and depth:
            flat |= {f"{key}.{name}": inner for name, inner in flatten_config(value, depth - 1).items()}
        else:
            flat[str(key)] = value
    return flat


def normalize_config_value(value: Any) -> Any:
    """Returns what two equal values have in common: 1e-06, "0.000001" and 0.000001 are the same number."""
    if isinstance(value, str):
        text = value.strip()
        try:
            return float(text)
        except ValueError:
            return {"true": True, "false": False, "none": None, "null": None}.get(text.lower(), text)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, list):
        return [normalize_config_value(each) for each in value]
    if isinstance(value, Mapping):
        return {key: normalize_config_value(each) for key, each in value.items()}
    return value


def are_equal_config_values(left: Any, right: Any) -> bool:
    """Whether two values of a configuration are equal. True is not 1."""
    if left is MISSING or right is MISSING:
        return left is right
    first, second = normalize_config_value(left), normalize_config_value(right)
    return type(first) is type(second) and bool(first == second)
