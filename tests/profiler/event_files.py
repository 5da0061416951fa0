"""Reads the values in event files back."""

import glob
import os

import tensorflow.compat.v1 as tf


def values(folder):
    """Tag -> [(step, value)] of the event files in a folder, not in those below."""
    found = {}
    for path in sorted(glob.glob(os.path.join(str(folder), "events*"))):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def steps(folder, tag):
    """The steps at which a value of StepStatsHook was written."""
    return [step for step, _ in values(folder).get("epl/" + tag, [])]
