"""A prediction, and other values, as mappings, lists, numbers and texts, for JSON: times in seconds, sizes in bytes."""

from typing import Any, Dict

from epl.planner.prediction.prediction import Prediction


def to_plain(prediction: Prediction) -> Dict[str, Any]:
    """All of a prediction but its program and run."""
    entries = prediction._asdict()
    del entries["lowered"], entries["run"]
    return {name: plain(value) for name, value in entries.items()}


def plain(value: Any) -> Any:
    """A value of NamedTuples, mappings and sequences as mappings and lists."""
    if hasattr(value, "_asdict"):
        return {name: plain(entry) for name, entry in value._asdict().items()}
    if isinstance(value, dict):
        return {str(name): plain(entry) for name, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
