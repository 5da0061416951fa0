"""The strategy of a model: used from a file (`auto.plan_file`), and recorded for one."""
