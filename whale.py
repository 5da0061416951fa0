"""EPL under its first name, as the slides of the paper have it: `import whale as wh`.

The names are those of the module epl, the same objects. The modules inside of it are found as epl.cluster and so on.
"""

import logging

from epl import *  # noqa: F403
from epl import __all__, __version__  # noqa: F401

logging.getLogger("epl").warning(
    "EPL: `import whale` gives you EPL, which was called Whale at first. New scripts write `import epl`."
)
