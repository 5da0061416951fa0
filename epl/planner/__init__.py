"""The planner: machines, the cost of collectives on them, and the command `epl-plan`."""
