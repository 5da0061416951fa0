"""How ops compute on shards: a module for each kind of op, and the registry that they register with."""
