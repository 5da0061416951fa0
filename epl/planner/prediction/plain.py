"""A prediction as mappings, lists, numbers and texts, for JSON: times in seconds, sizes in bytes."""

from typing import Any, Dict

from epl.planner.prediction.prediction import Prediction


def to_plain(prediction: Prediction) -> Dict[str, Any]:
    """All of a prediction but its program and run."""
    entries = prediction._asdict()
    del entries["lowered"], entries["run"]
    return {name: _plain(value) for name, value in entries.items()}


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(entry) for name, entry in value._asdict().items()}
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
