"""The stack of strategies in effect: the default one below, an explicit scope above it, a split in that on top."""

from typing import TYPE_CHECKING, List, Optional

import tensorflow.compat.v1 as tf

from epl.ir.graph import Beginning, Graph
from epl.utils.errors import NestingError

if TYPE_CHECKING:
    from epl.strategies.parallel_strategy import ParallelStrategy  # a type, not a dependency

_REMEDY = (
    "Close the first scope before opening the next: strategy annotations stand side by side, but for epl.split in a "
    "scope of epl.replicate."
)


class StrategyContext(object):
    """Which strategy new ops belong to, in whichever graph they are created."""

    def __init__(self) -> None:
        self._beginning: Optional[Beginning] = None  # of a graph that is made now
        self._scopes: List[ParallelStrategy] = []
        self._graphs: List[Graph] = []  # in which the open scope is in effect
        self._count = 0

    @property
    def state(self) -> List["ParallelStrategy"]:
        """The strategies in effect, outermost first."""
        graph = Graph.get()
        default = graph.default_strategy if graph is not None else None
        return [default, *self._scopes] if default is not None else list(self._scopes)

    def set_default(self, strategy: "ParallelStrategy") -> None:
        """Makes `strategy` that of every op outside an explicit scope; see `epl.set_default_strategy`.

        A graph that is made later begins with the first default strategy of this one. If that was set amid the building
        of a model, the graph made later is likely built by the same function: its own first call is that strategy then,
        and begins no second TaskGraph.
        """
        if self._scopes:
            raise NestingError(
                "set_default_strategy was called inside {}. Call it outside of any scope.".format(self._scopes[-1])
            )
        graph = Graph.get(may_create=True)
        assert graph is not None
        graph.set_default_strategy(strategy)
        self._beginning = graph.beginning

    def enter(self, strategy: "ParallelStrategy") -> None:
        """Opens an explicit scope in the default graph."""
        outer = self._scopes[-1] if self._scopes else None
        if outer is not None and outer.name_of_kind == "split":
            raise NestingError(
                "Can't nest strategies in split strategy: {} inside {}. {}".format(strategy, outer, _REMEDY)
            )
        if outer is not None and strategy.name_of_kind == outer.name_of_kind:
            raise NestingError(
                "Can't nest strategies with same type: {} inside {}. {}".format(strategy, outer, _REMEDY)
            )
        if strategy.index is None:
            strategy.index = self._count
            self._count += 1
        graph = Graph.get(may_create=True)  # before the scope is in effect: a graph made now must not open it as well
        assert graph is not None
        self._scopes.append(strategy)
        graph.open_taskgraph(strategy, outer)
        if graph not in self._graphs:
            self._graphs.append(graph)

    def exit(self) -> None:
        """Closes the innermost explicit scope: ops belong to the one around it or to the default strategy again.

        With neither they belong to the last TaskGraph.
        """
        self._scopes.pop()
        self._graphs = [graph for graph in self._graphs if graph.exists]  # others were made and left in the scope
        if self._scopes:
            for graph in self._graphs:
                graph.open_taskgraph(self._scopes[-1])
            return
        graphs, self._graphs = self._graphs, []
        for graph in graphs:
            if graph.default_strategy is None:
                graph.close_taskgraph()
            else:
                graph.open_taskgraph(graph.default_strategy)

    def annotate(self, tf_graph: tf.Graph) -> None:
        """A new tf.Graph begins with the strategies in effect (an Estimator builds in a graph of its own)."""
        if self._beginning is not None:
            graph = Graph.of(tf_graph, may_create=True)
            assert graph is not None
            graph.begin(self._beginning)
        if self._scopes:
            graph = Graph.of(tf_graph, may_create=True)
            assert graph is not None
            graph.open_taskgraph(self._scopes[-1], self._scopes[-2] if len(self._scopes) > 1 else None)
            self._graphs.append(graph)
