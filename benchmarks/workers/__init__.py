"""Programs that are measured: started by ``benchmarks/groups.py``, asked over ``benchmarks/control.py``."""
