"""The command `epl-launch` under the path of the released EPL: `python -m epl.utils.launcher`."""

import sys

from epl.launcher.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
