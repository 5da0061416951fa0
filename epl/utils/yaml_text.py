"""YAML that people write: every scalar is a text, and no key stands twice. The only module that needs PyYAML."""

from typing import Any

import yaml


class _StrictLoader(yaml.BaseLoader):
    """Reads scalars as texts, so that `on` and `1:30` stay what they are; refuses keys that stand twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f"the key {key.value!r} stands twice in one mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


def write_yaml(plain: Any) -> str:
    """Mappings, lists, texts and numbers as YAML that `parse_yaml` reads; the innermost ones in one line each."""
    text: str = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, allow_unicode=True, width=1000)
    return text


def parse_yaml(text: str) -> Any:
    """The mappings, lists and texts of a YAML text.

    Raises:
      ValueError: it is no YAML; the message says where.
    """
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ValueError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
