"""Automatic stages (`auto.auto_parallel`) as a feature."""

from typing import Any, Optional, Sequence

import tensorflow.compat.v1 as tf

from epl.env import Env
from epl.ir.gradient_boundary import variable_name
from epl.ir.graph import Graph
from epl.ir.inserted_ops import OpOrigin
from epl.parallel.auto_partition.annotate import Partitioned, partition_model
from epl.parallel.feature import Feature
from epl.parallel.plan.sections import PartitionSection
from epl.parallel.rewriting.context import RewriteContext


class AutoPartitionFeature(Feature):
    """Divides the model into stages when it is first differentiated by its variables."""

    origin = OpOrigin("auto.auto_parallel", "stages")

    def annotate(self, ys: Any, xs: Sequence[Any]) -> None:
        """Annotates the model of the default graph."""
        env = Env.get()
        if not env.config.auto.auto_parallel or all(variable_name(x) is None for x in xs):
            return
        graph = Graph.of(tf.get_default_graph(), may_create=True)
        assert graph is not None and env.cluster is not None
        if graph.rewritten is None and graph.state_of(Partitioned) is None:
            graph.refuse_earlier_model()
            graph.keep(Partitioned, Partitioned())
            partition_model(graph, ys, env.config.pipeline.num_stages or 1, env.cluster.device_type.lower())

    def plan(self, rewrite: RewriteContext) -> Optional[PartitionSection]:
        """What was decided when the model was first differentiated."""
        return rewrite.graph.state_of(PartitionSection)
