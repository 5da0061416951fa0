"""A machine as the planner knows it: devices, links, nodes, and the costs of collectives. It needs no TensorFlow."""
