"""The partitioner of split TaskGraphs: placements, one rule per op type, the cheapest legal choice, lowering."""
