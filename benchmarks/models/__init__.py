"""Models that the benchmarks train, written for one device as any user of the library would write them."""
