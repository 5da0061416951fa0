"""How a step of any strategy would run on a machine, without a graph: its time, its memory, and what sets them."""
