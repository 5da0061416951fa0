"""The partitioner of split TaskGraphs: region, unsplit program, search for the cheapest choices, lowering."""
