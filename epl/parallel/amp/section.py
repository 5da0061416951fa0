"""Mixed precision's section of the plan: the types, and a digest of the ops in half precision."""

import hashlib
from typing import Sequence

from epl.config.config import Config
from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.plan.sections import AmpSection


def note(graph: Graph, ops: Sequence[str]) -> None:
    """Adds ops in half precision, given by their op types, to the section."""
    before = of(graph, Env.get().config)
    digest = hashlib.sha256("\n".join([before.digest, *ops]).encode()).hexdigest()[:16]
    graph.keep(AmpSection, before._replace(ops=before.ops + len(ops), digest=digest))


def of(graph: Graph, config: Config) -> AmpSection:
    """The section so far."""
    return graph.state_of(AmpSection) or AmpSection(config.amp.dtype, str(config.amp.loss_scale), 0, "")
