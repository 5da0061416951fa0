"""Ops that a pass adds as NodeDefs, imported with the clones: TensorFlow's Python functions take ten times as long."""

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir.taskgraph import TASKGRAPH_ATTR
from epl.parallel.rewriting.context import PLAN_SCOPE, RewriteContext

# (micro batch, node of micro batch 0) -> names of the ops that its copy in the micro batch waits for
Waits = Dict[Tuple[int, int], List[str]]


class PlanNodes:
    """NodeDefs to import, in one name scope of the plan and one stage.

    Attributes:
      nodes: the NodeDefs.
    """

    def __init__(self, rewrite: RewriteContext, scope: str, stage: int) -> None:
        self.nodes: List[tf.NodeDef] = []
        self._built = rewrite.built
        self._scope = f"{PLAN_SCOPE}/{scope}/"
        self._taskgraph = rewrite.plan.stages[stage].taskgraphs[0]
        self._constants: Dict[Tuple[Any, ...], str] = {}

    def add(self, name: str, op: str, inputs: Sequence[str], **types: tf.DType) -> tf.NodeDef:
        """Adds a node with the given type attributes, named `name` in the scope."""
        node = tf.NodeDef(name=self._scope + name, op=op, input=inputs)
        node.attr[TASKGRAPH_ATTR].i = self._taskgraph
        for key, dtype in types.items():
            node.attr[key].type = dtype.as_datatype_enum
        self._built.add(node.name)
        self.nodes.append(node)
        return node

    def constant(self, value: Any, dtype: tf.DType) -> str:
        """The name of a constant; equal constants are added once."""
        key = (dtype, np.shape(value), np.asarray(value).tobytes())
        if key not in self._constants:
            node = self.add(f"constant{len(self._constants)}", "Const", [], dtype=dtype)
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype, np.shape(value)))
            self._constants[key] = node.name
        return self._constants[key]
