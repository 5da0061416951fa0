"""Begins with the weights of a published checkpoint.

Owns what is taken from it (everything under `bert/` that the model has; the head of a task begins anew) and the check
that it fits.
"""

from typing import Callable, List, Tuple

import tensorflow.compat.v1 as tf

PRETRAINED = "bert/"


class CheckpointError(ValueError):
    """A checkpoint does not hold the weights of the model."""


def fitting(path: str, variables: List[tf.Variable]) -> Tuple[List[tf.Variable], List[str]]:
    """Returns the variables that a checkpoint has the values of, and the names in it that the model has no use for.

    Raises:
      CheckpointError: a variable under `bert/` is missing or has another shape, or there is no checkpoint.
    """
    if not tf.train.checkpoint_exists(path):
        raise CheckpointError(
            "there is no checkpoint {0}; expected the files {0}.index and {0}.data-..., and the path without these "
            "endings.".format(path)
        )
    shapes = tf.train.NewCheckpointReader(path).get_variable_to_shape_map()
    wanted = [variable for variable in variables if variable.op.name.startswith(PRETRAINED)]
    wrong = [
        "{} {}: {}".format(
            variable.op.name,
            variable.shape.as_list(),
            shapes.get(variable.op.name, "not in the checkpoint"),
        )
        for variable in wanted
        if shapes.get(variable.op.name) != variable.shape.as_list()
    ]
    if wrong:
        raise CheckpointError(
            "{} of {} variables do not fit the checkpoint {}: {}{}. Use the bert_config.json beside it.".format(
                len(wrong), len(wanted), path, "; ".join(wrong[:3]), "; ..." if wrong[3:] else ""
            )
        )
    return wanted, sorted(set(shapes) - {variable.op.name for variable in wanted})


def initial_weights(path: str, variables: List[tf.Variable]) -> Callable[[tf.train.Scaffold, tf.Session], None]:
    """Returns the `init_fn` of a Scaffold that restores the weights of a published checkpoint; call it in the graph."""
    wanted, unused = fitting(path, variables)
    print("{} variables from {}; not used: {}".format(len(wanted), path, ", ".join(unused) or "none"), flush=True)
    saver = tf.train.Saver(wanted)
    return lambda scaffold, session: saver.restore(session, path)
