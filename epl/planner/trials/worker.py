"""What each worker of a trial does: it runs the script until some training steps are timed."""

import logging
import runpy
import sys
import tempfile
from typing import Optional, Sequence

from epl.env import Env
from epl.runtime import hooks
from epl.runtime.trial import Trial, TrialDone


def train_briefly(script: str, arguments: Sequence[str]) -> Optional[float]:
    """Seconds of a training step of a script, the median; None if it ended before.

    Args:
      script: its path; the configuration, with the plan, comes from the environment.
      arguments: of the script.
    """
    with tempfile.TemporaryDirectory(prefix="epl-trial-") as folder:
        trial = Env.get().trial = Trial(folder)
        hooks.install()  # a script may write before it calls epl.init
        sys.argv = [script, *arguments]
        try:
            runpy.run_path(script, run_name="__main__")
        except TrialDone:
            pass
        except SystemExit as end:
            logging.getLogger("epl").info("the script ended with %r", end.code)
        return trial.seconds
