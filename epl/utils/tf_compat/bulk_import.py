"""What tf1.py and tf2.py share of the bulk import of nodes. The C API is theirs: it is in another module in each."""

from typing import Any, List, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import c_api_util  # scoped C options


def import_options(
    c_api: Any, inputs: List[Tuple[str, int, tf.Tensor]], controls: List[Tuple[str, tf.Operation]]
) -> Any:
    """The options of an import that keeps all names; its `options` are for the C API, and live as long as it does.

    Args:
      c_api: the module with TensorFlow's C API.
      inputs, controls: as in `import_nodes`.
    """
    scoped = c_api_util.ScopedTFImportGraphDefOptions()
    options = scoped.options
    c_api.TF_ImportGraphDefOptionsSetUniquifyNames(options, False)
    c_api.TF_ImportGraphDefOptionsSetValidateColocationConstraints(options, False)
    for name, index, tensor in inputs:
        c_api.TF_ImportGraphDefOptionsAddInputMapping(options, name, index, tensor._as_tf_output())
    for name, operation in controls:
        c_api.TF_ImportGraphDefOptionsRemapControlDependency(options, name, operation._c_op)
    return scoped


def imported(c_api: Any, graph: tf.Graph, graph_def: bytes, options: Any) -> Any:
    """Imports a serialized GraphDef; the caller holds the graph's lock. Returns the results of the C API.

    Raises:
      ValueError: TensorFlow refused a node; the error has TensorFlow's text.
    """
    with c_api_util.tf_buffer(graph_def) as serialized:
        try:
            results = c_api.TF_GraphImportGraphDefWithResults(graph._c_graph, serialized, options)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(str(error)) from error
    return c_api_util.ScopedTFImportGraphDefResults(results)


class wrapping_operations:
    """Inside, ops that exist in the C graph get their Python objects: in any graph, outside of any control flow."""

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        graph = self._graph
        self._finalized, graph._finalized = graph._finalized, False
        self._context = graph._get_control_flow_context()
        graph._set_control_flow_context(None)

    def __exit__(self, *unused: object) -> None:
        self._graph._finalized = self._finalized
        self._graph._set_control_flow_context(self._context)
