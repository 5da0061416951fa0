"""The partitioner of split TaskGraphs: layouts of tensors, rules per op type, the cheapest legal choice, lowering."""
