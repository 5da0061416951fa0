"""Trains each case from the plan that another process has written, with every search switched off."""

import os
import sys

import numpy as np

from epl.parallel.plan.loaded import use_plan
from epl.parallel.plan.plan import from_json
from tests.parallel.plan.planned_models import CASES, Layers, begin, no_search


def main(directory):
    for case in CASES:
        with open(os.path.join(directory, case + ".json"), encoding="utf-8") as source:
            plan = from_json(source.read())
        with no_search(), use_plan(plan):
            begin(case)
            values = Layers(case).train()
        np.savez(os.path.join(directory, case), *values)


if __name__ == "__main__":
    main(sys.argv[1])
