"""The stack of strategies in effect: the default one below, an explicit scope above it, a split in that on top.

Each thread has scopes of its own, as it has a default graph of its own in TensorFlow: two threads can annotate two
models at the same time. The default strategy is that of a graph, whichever thread set it.
"""

import itertools
import threading
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


class _OpenScopes(threading.local):
    """The explicit scopes of a thread, outermost first."""

    def __init__(self) -> None:
        self.strategies: List["ParallelStrategy"] = []
        self.graphs: List[Graph] = []  # in which they are in effect


class StrategyContext:
    """Which strategy new ops belong to, in whichever graph they are created."""

    def __init__(self) -> None:
        self._beginning: Optional[Beginning] = None  # of a graph that is made now
        self._open = _OpenScopes()
        self._indices = itertools.count()

    @property
    def state(self) -> List["ParallelStrategy"]:
        """The strategies in effect, outermost first."""
        graph = Graph.get()
        default = graph.default_strategy if graph is not None else None
        scopes = self._open.strategies
        return [default, *scopes] if default is not None else list(scopes)

    def set_default(self, strategy: "ParallelStrategy") -> None:
        """Makes `strategy` that of every op outside an explicit scope; see `epl.set_default_strategy`.

        A graph that is made later begins with the first default strategy of this one. If that was set amid the building
        of a model, the graph made later is likely built by the same function: its own first call is that strategy then,
        and begins no second TaskGraph. Nor does one that states the same strategy again, ahead of all weights.
        """
        if self._open.strategies:
            inner = self._open.strategies[-1]
            raise NestingError(f"set_default_strategy was called inside {inner}. Call it outside of any scope.")
        graph = Graph.get(may_create=True)
        assert graph is not None
        graph.set_default_strategy(strategy)
        self._beginning = graph.beginning

    def enter(self, strategy: "ParallelStrategy") -> None:
        """Opens an explicit scope in the default graph."""
        scopes = self._open.strategies
        outer = scopes[-1] if scopes else None
        if outer is not None and outer.name_of_kind == "split":
            raise NestingError(f"Can't nest strategies in split strategy: {strategy} inside {outer}. {_REMEDY}")
        if outer is not None and strategy.name_of_kind == outer.name_of_kind:
            raise NestingError(f"Can't nest strategies with same type: {strategy} inside {outer}. {_REMEDY}")
        if strategy.index is None:
            strategy.index = next(self._indices)
        graph = Graph.get(may_create=True)  # before the scope is in effect: a graph made now must not open it as well
        assert graph is not None
        scopes.append(strategy)
        graph.open_taskgraph(strategy, outer)
        if graph not in self._open.graphs:
            self._open.graphs.append(graph)

    def exit(self, strategy: "ParallelStrategy") -> None:
        """Closes the innermost explicit scope: ops belong to the one around it or to the default strategy again.

        With neither they belong to the last TaskGraph.

        Raises:
            NestingError: `strategy` is not the innermost scope.
        """
        scopes = self._open.strategies
        if not scopes or scopes[-1] is not strategy:
            raise NestingError(
                "{} was left, and {}. Open scopes by `with`, one inside the other, leave each in the thread that "
                "entered it, and call epl.init() outside of them.".format(
                    strategy, f"{scopes[-1]} is the innermost scope" if scopes else "no scope is open"
                )
            )
        scopes.pop()
        graphs = [graph for graph in self._open.graphs if graph.exists]  # others were made and left in the scope
        self._open.graphs = graphs if scopes else []
        if scopes:
            for graph in graphs:
                graph.open_taskgraph(scopes[-1])
            return
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
        scopes = self._open.strategies
        if scopes:
            graph = Graph.of(tf_graph, may_create=True)
            assert graph is not None
            graph.open_taskgraph(scopes[-1], scopes[-2] if len(scopes) > 1 else None)
            self._open.graphs.append(graph)
