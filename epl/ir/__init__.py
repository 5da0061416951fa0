"""The annotated model: the TaskGraph and phase of each op, and functions to read and edit the graph."""

from epl.ir.graph import ApplyCall, GradientCall, Graph, GraphKeys
from epl.ir.taskgraph import TaskGraph

__all__ = ["ApplyCall", "GradientCall", "Graph", "GraphKeys", "TaskGraph"]
