"""The planner: from a model and a machine to the fastest plan that fits. So far it has the machine."""
