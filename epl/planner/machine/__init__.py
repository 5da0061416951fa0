"""A machine as the planner knows it: devices, links, nodes. It needs no TensorFlow."""
