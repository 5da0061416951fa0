"""What the plan says of stages that were found automatically."""

from typing import Dict, List, Optional, Set, Tuple

from epl.ir.view import GraphView
from epl.parallel.auto_partition.partition import Partition, PlannedStages
from epl.parallel.plan.loaded import given, misfit
from epl.parallel.plan.sections import PartitionSection, StageRun


def section_of(view: GraphView, found: Partition) -> PartitionSection:
    """A partition by the names of ops."""
    runs: List[StageRun] = []
    for node, stage in sorted(found.of_node.items()):
        if not runs or runs[-1].stage != stage:
            runs.append(StageRun(view.nodes[node].name, stage))
    return PartitionSection(found.policy, len(found.stages), tuple(runs))


def planned(view: GraphView, num_stages: int) -> Optional[PlannedStages]:
    """The stages that the plan in use has; None: they are searched for.

    Args:
      view: of the graph.
      num_stages: how many there are to be.

    Raises:
      PlanError: the plan in use is that of another model.
    """
    section = given(PartitionSection)
    if section is None:
        return None
    if section.stages != num_stages:
        raise misfit(f"pipeline.num_stages is {num_stages}, and the plan has {section.stages} stages")

    def stages(needed: Set[int]) -> Tuple[str, Dict[int, int]]:
        assert section is not None
        begins = {view.index.get(run.op, -1): run for run in section.runs}
        missing = [run.op for node, run in begins.items() if node not in needed]
        if missing:
            raise misfit(f"the objective does not need {missing[0]!r}, with which a stage of the plan begins")
        found: Dict[int, int] = {}
        stage = section.runs[0].stage
        for node in sorted(needed):
            stage = begins[node].stage if node in begins else stage
            found[node] = stage
        return section.policy, found

    return stages
