"""How many rows of a batch each replica has: the largest-remainder rule, and what `auto.balance` asks for.

    96 rows in the proportions 5:3:1      quotas 53.33  32  10.67      rows 53  32  11

The rows that are left over after each replica got the whole part of its quota go, one each, to the largest remainders;
equal remainders: to the lower rank. (Hamilton's method; Balinski and Young, Fair Representation, chapter 3.)
"""

import functools
import math
from typing import List, Sequence, Tuple

from epl.config.config import Config
from epl.env import Env
from epl.parallel.plan import loaded
from epl.parallel.plan.plan import Plan, ranks_of
from epl.utils.errors import PlanError


def share_out(rows: int, shares: Sequence[int]) -> Tuple[int, ...]:
    """The rows of each replica, which add up to `rows`; 0 only where a quota is below one row.

    Args:
      rows: of all replicas.
      shares: the proportions, from 1.
    """
    total = sum(shares)
    found = [rows * share // total for share in shares]
    left_over = rows - sum(found)
    for rank in sorted(range(len(shares)), key=lambda rank: (-(rows * shares[rank] % total), rank))[:left_over]:
        found[rank] += 1
    return tuple(found)


def rows_for_all(shares: Sequence[int]) -> int:
    """A number of rows from which on every replica gets at least one."""
    return -(-sum(shares) // min(shares))


def reduced(shares: Sequence[int]) -> Tuple[int, ...]:
    """The proportions in the smallest numbers; () if all are equal."""
    if len(set(shares)) <= 1:
        return ()
    divisor = functools.reduce(math.gcd, shares)
    return tuple(share // divisor for share in shares)


def asked_for(config: Config) -> Tuple[int, ...]:
    """The proportions of `auto.balance`; () for "even", and for "speed" in a model that is not differentiated."""
    balance = config.auto.balance
    return () if balance in ("even", "speed") else tuple(int(number) for number in balance.split(":"))


def plan_row_shares(config: Config, owners: Sequence[int], workers: int) -> Tuple[int, ...]:
    """The proportions of the replicas' rows, by rank, in the smallest numbers; () if all have as many.

    Without proportions in the configuration those of a loaded plan hold.

    Args:
      config: the configuration.
      owners: by rank, the process of a replica.
      workers: how many processes the job has.

    Raises:
      PlanError: as many proportions as there are replicas were expected, or the replicas are not where
        `epl.local_rows` counted them.
    """
    shares = asked_for(config)
    if not shares:
        plan = loaded.in_use()
        return () if plan is None else plan.row_shares
    if len(shares) != len(owners):
        raise PlanError(
            'auto.balance is "{}", proportions for {} replica(s), and the job has {}: give as many numbers as '
            'there are replicas of the model, in the order of their ranks, or set it to "even".'.format(
                config.auto.balance, len(shares), len(owners)
            )
        )
    counted = [rank * workers // len(owners) for rank in range(len(owners))]
    if Env.get().asked_local_rows and list(owners) != counted:
        raise PlanError(
            "epl.local_rows counted replicas on workers {}, by rank, and the model has them on workers {}: the stages "
            "of a replica are on several workers. Share out the rows in the script.".format(
                ", ".join(map(str, counted)), ", ".join(map(str, owners))
            )
        )
    return reduced(shares)


def local_shares(plan: Plan, worker: int) -> Tuple[int, ...]:
    """The proportions of the replicas of a worker, in the smallest numbers; () if all of these have as many rows."""
    return reduced([plan.row_shares[rank] for rank in ranks_of(plan, worker)]) if plan.row_shares else ()


def ranks_without_rows(rows: Sequence[int]) -> List[int]:
    """The replicas that have none."""
    return [rank for rank, own in enumerate(rows) if not own]
