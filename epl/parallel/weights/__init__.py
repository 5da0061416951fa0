"""Where and when the weights of a model are used: offload prefetches them, ZeRO v2 gathers them per block of uses."""
