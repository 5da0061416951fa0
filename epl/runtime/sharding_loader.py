"""`ShardingLoader`: variables begin with values, or slices of values, of a checkpoint."""

import logging
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.parallel.sharded_variables.initial_values import shard_of, spec_of
from epl.parallel.sharded_variables.variables import beside, is_shard
from epl.utils import tf_compat

logger = logging.getLogger("epl")

Slice = Tuple[Sequence[int], Sequence[int]]


class ShardingLoader:
    """Has the initializers of variables read a checkpoint, one variable after another to spare memory.

    Unlike `Saver.restore` it can give many variables the value of one, and a variable a part of a value. Build it
    before the session; the values arrive when the variables are initialized.
    """

    def __init__(
        self,
        ckpt_file: Optional[str],
        var_list: Optional[Sequence[Any]] = None,
        assign_map: Optional[Mapping[str, str]] = None,
        sharding_info: Optional[Mapping[str, Slice]] = None,
    ) -> None:
        """Makes the loader.

        Args:
          ckpt_file: path of a checkpoint without `.index`; None: `restore` changes nothing.
          var_list: the variables; default: `tf.global_variables()`.
          assign_map: `variable.op.name` -> name in the checkpoint, which several variables may share; default: the
            variable's own name.
          sharding_info: name in the checkpoint -> (begin, size) of the part to be taken, a number for each dimension
            as for `tf.slice`; default: the whole value.
        """
        self._ckpt_file = ckpt_file
        self._variables = list(tf.global_variables() if var_list is None else var_list)
        self._assign_map = dict(assign_map or {})
        self._sharding_info = dict(sharding_info or {})

    def restore(self) -> None:
        """Changes the initializers.

        Raises:
          ValueError: there is no such checkpoint, or it has no value of that name, shape and type.
        """
        if self._ckpt_file is None:
            logger.warning("ShardingLoader has no checkpoint: the variables begin with their own initial values.")
            return
        if not tf.gfile.Glob([self._ckpt_file + ".index", self._ckpt_file]):  # of version 2 or 1
            raise ValueError(
                "ShardingLoader: there is no checkpoint {0}: expected the files {0}.index and {0}.data-...".format(
                    self._ckpt_file
                )
            )
        reader = tf.train.NewCheckpointReader(self._ckpt_file)
        shapes, kinds = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        specs = {variable: self._spec(variable, shapes, kinds) for variable in self._variables}
        before: List[tf.Operation] = []
        for variable in self._variables:
            name, spec = specs[variable]
            with tf.control_dependencies(before), tf.device("/cpu:0"):
                (value,) = tf.raw_ops.RestoreV2(
                    prefix=self._ckpt_file,
                    tensor_names=[name],
                    shape_and_slices=[spec],
                    dtypes=[variable.dtype.base_dtype],
                )
            value.set_shape(_shape(variable))
            if is_shard(variable):
                with beside(variable.op), tf.control_dependencies(before):
                    value = shard_of(value, *variable._epl_full[1:])
            tf_compat.set_input(variable.initializer, 1, value)
            variable._initial_value = value  # as tf.train.init_from_checkpoint does
            before = [variable.initializer]

    def _spec(self, variable: Any, shapes: Dict[str, Any], kinds: Dict[str, Any]) -> Tuple[str, str]:
        """The name of a variable's value, and which part it is in the words of TensorFlow: "10 8 0,10:4,4"."""
        name = self._assign_map.get(variable.op.name, variable.op.name)
        place = f"ShardingLoader: checkpoint {self._ckpt_file}, variable {variable.op.name}"
        if name not in shapes:
            raise ValueError(
                "{}: there is no value {!r}; it has {}. Give assign_map its name, or var_list without it.".format(
                    place, name, ", ".join(sorted(shapes)[:20])
                )
            )
        full, wanted = shapes[name], _shape(variable)
        begin, size = self._sharding_info.get(name, ([0] * len(full), full))
        begin, size = [int(number) for number in begin], [int(number) for number in size]
        if len(begin) != len(full) or len(size) != len(full):
            raise ValueError(
                "{}: sharding_info is {}: expected (begin, size) with {} number(s) each, one for each dimension of "
                "{!r}, {}.".format(place, (begin, size), len(full), name, full)
            )
        size = [whole - at if number == -1 else number for whole, at, number in zip(full, begin, size)]
        if any(at < 0 or number < 1 or at + number > whole for whole, at, number in zip(full, begin, size)):
            raise ValueError(f"{place}: the part at {begin} of size {size} is not within {name!r}, {full}.")
        if size != wanted or kinds[name] != variable.dtype.base_dtype:
            raise ValueError(
                "{}: expected {} {}, found {} {} in {!r}{}.".format(
                    place, variable.dtype.base_dtype.name, wanted, kinds[name].name, size, name,
                    "" if size == full else f" (a part of {full})",
                )
            )  # fmt: skip
        return name, spec_of(full, begin, size) if size != full else ""


def _shape(variable: Any) -> List[int]:
    """Of the whole, if the variable is a part."""
    return list(variable._epl_full[1]) if is_shard(variable) else variable.shape.as_list()
