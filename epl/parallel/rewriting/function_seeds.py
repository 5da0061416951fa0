"""Own seeds for the copies of random ops, also in the bodies of functions.

A copy of an op that calls a function with random ops calls a copy of the function:

    call of f   f: random(seed)            call of f    f: random(seed)
                                     =>    call of f'   f': random(another seed)

Functions are those of tf.function, Defun, and of loops and branches of control flow v2. An op names the functions that
it calls in its attributes or by its type.
"""

from typing import Any, List, Optional, Set, Tuple, Union

import tensorflow.compat.v1 as tf

from epl.ir import node_wire
from epl.ir.clone import Edit
from epl.ir.view import GraphView, functions_of
from epl.parallel.rewriting.random_seeds import own_seed

Node = Union[tf.NodeDef, node_wire.Node]


class OwnSeeds:
    """Gives copies of the random ops of one graph their own seeds.

    Attributes:
      functions: names of the copied functions.
    """

    def __init__(self, view: GraphView) -> None:
        self.functions: Set[str] = set()
        library = view.graph_def.library
        self._added = tf.GraphDef().library
        self._functions = {function.signature.name: function for function in library.function}
        self._gradients = {gradient.function_name: gradient.gradient_func for gradient in library.gradient}
        self._random = self._find_random()

    def take_library(self) -> Any:
        """The new functions since the last call, as a FunctionDefLibrary to add to the graph."""
        taken, self._added = self._added, tf.GraphDef().library
        return taken

    def _find_random(self) -> Set[str]:
        calls = {
            name: set().union(*[functions_of(node) for node in function.node_def])
            for name, function in self._functions.items()
        }
        found = {
            name
            for name, function in self._functions.items()
            if any(own_seed(node, rank=1) is not None for node in function.node_def)
        }
        while True:
            more = {name for name, called in calls.items() if called & found} - found
            if not more:
                return found
            found |= more

    def is_random(self, node: Node) -> bool:
        """Whether a node is a random op, or calls a function with random ops."""
        return "seed2" in node.attr or (bool(self._random) and not self._random.isdisjoint(functions_of(node)))

    def edit(self, node: Node, device: Optional[str] = None, rank: int = 0, micro_batch: int = 0) -> Edit:
        """The changes of the copy of a random op, on `device`, for a replica or a micro batch."""
        attrs = self._own_functions(node, rank, micro_batch)
        seed = own_seed(node, rank, micro_batch)
        if seed is not None:
            attrs.append(("seed2", seed))
        return Edit(device, attrs, op=self._copy(node.op, rank, micro_batch) if node.op in self._random else "")

    def _own_functions(self, node: Node, rank: int, micro_batch: int) -> List[Tuple[str, tf.AttrValue]]:
        found = []
        for key, value in node.attr.items() if self._random else ():
            own = tf.AttrValue()
            own.CopyFrom(value)
            for function in [own.func] if own.HasField("func") else own.list.func if own.HasField("list") else []:
                if function.name in self._random:
                    function.name = self._copy(function.name, rank, micro_batch)
            if own != value:
                found.append((key, own))
        return found

    def _copy(self, name: str, rank: int, micro_batch: int) -> str:
        """The name of a function's copy, which is made at the first call."""
        copy = f"{name}_epl_rank{rank}_micro_batch{micro_batch}"
        if copy not in self._functions:
            function = self._added.function.add()
            self._functions[copy] = function
            function.CopyFrom(self._functions[name])
            function.signature.name = copy
            for node in function.node_def:
                own = self.edit(node, rank=rank, micro_batch=micro_batch)
                for key, value in own.attrs or ():
                    node.attr[key].CopyFrom(value)
                node.op = own.op or node.op
            self.functions.add(copy)
            if name in self._gradients:
                self._added.gradient.add(function_name=copy, gradient_func=self._gradients[name])
        return copy
