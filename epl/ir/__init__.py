"""The annotated model: which op belongs to which TaskGraph and phase, and the means to read and edit the graph."""

from epl.ir.graph import ApplyCall, GradientCall, Graph, GraphKeys
from epl.ir.taskgraph import TaskGraph

__all__ = ["ApplyCall", "GradientCall", "Graph", "GraphKeys", "TaskGraph"]
