#!/usr/bin/env python
"""Writes docs/config.md from the table of configuration keys; `--check` only says whether the page is up to date.

Owns the layout of that page. Its content is in `epl/config/keys.py` and `epl/config/types.py`.
"""

import os
import sys
from typing import List, Optional

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, _ROOT)

from epl.config import keys as config_keys  # noqa: E402
from epl.config.keys import Key  # noqa: E402
from tools import generated_page  # noqa: E402

PAGE = os.path.join(_ROOT, "docs", "config.md")

_HEAD = """\
# Configuration

<!-- Written by tools/gen_config_docs.py from epl/config/keys.py. Do not edit: change the table and run the tool. -->

```python
import epl

config = epl.Config({"pipeline.num_micro_batch": 4, "communication.fp16": True})
config.communication.max_splits = 8
epl.init(config)
print(config)
```

Every key has a section, a name and a type. Its value comes, in this order, from

1. the dict given to `epl.Config` (by dotted key, or nested: `{"pipeline": {"num_micro_batch": 4}}`), or an attribute
   set later;
2. the environment variable `EPL_<SECTION>_<KEY>`, read when the `epl.Config` is made;
3. the default below.

`print(config)` shows every value and which of the three it came from. After `epl.init` a configuration is in use and
can no longer be changed: make a new one and call `epl.init` again.

- An unknown key, a value of the wrong type and an illegal value are errors (`epl.utils.errors.ConfigError`, which is a
  `ValueError`) that name the nearest key or the legal values. A variable `EPL_<SECTION>_...` in the environment that
  is no key is reported by a warning.
- Booleans in the environment are `true`, `1`, `yes`, `false`, `0`, `no`, in upper or lower case. In code only `True`
  and `False` are: an integer key takes no boolean, a boolean key no integer.
- The keys of Whale, as EPL was called at first, are understood: `num_micro_batch` is `pipeline.num_micro_batch`, and
  `num_task_graph` is `pipeline.num_stages` with `auto.auto_parallel` on.
- Values with a fixed set of words are accepted in upper and lower case and stored in lower case:
  `config.pipeline.strategy` reads back as `"preferbackward"`.
"""


def render() -> str:
    """Returns the text of the page."""
    parts = [_HEAD]
    for section, title in config_keys.SECTIONS:
        parts.append(f"\n## `{section}`: {title}\n")
        parts.extend(_render_key(key) for key in config_keys.keys_of(section))
    return "".join(parts)


def _render_key(key: Key) -> str:
    facts = [f"Type: {key.type.name}", f"default: `{key.type.show(key.default)}`"]
    if key.unit:
        facts.append(f"unit: {key.unit}")
    return "\n".join(
        [
            "",
            f"### `{key.name}`",
            "",
            key.help,
            "",
            f"- {', '.join(facts)}",
            f"- Legal: {key.type.expected()}",
            f"- Environment: `{config_keys.env_name(key.name)}`",
            "",
        ]
    )


def main(argv: Optional[List[str]] = None) -> int:
    """Writes or checks the page; returns the exit code."""
    return generated_page.main(os.path.basename(__file__), PAGE, render, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
