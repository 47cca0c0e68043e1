# SPDX-License-Identifier: PostgreSQL
"""python3 -m torture: `make torture` and `make torture-selftest`. Exit status: 0 all held, 1 a violation, 2 the harness itself failed."""

import argparse
import pathlib
import random
import sys

from . import citus, languages, mutations, selftest, servers, shrink
from .nemesis import kinds_of
from .run import TOPOLOGIES, Plan, run
from .seeds import SEEDS_FILE, read_seeds
from .workload import CLIENTS, GROUPS


def doors(text):
    """A list from the command line; None for all that are used without being named."""
    named = None if text in ("", "all") else tuple(text.split(","))
    unknown = [door for door in named or () if door.partition("/")[0] not in GROUPS | CLIENTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such door: {', '.join(unknown)}; there are {', '.join(GROUPS | CLIENTS)}")
    for door in named or ():
        language, way = door.partition("/")[0], door.rpartition("/")[2]
        ways = (*languages.FRAMEWORKS.get(language, ()), *languages.DRIVERS.get(language, ()))
        if door.count("/") == 2 and way not in ways:
            raise argparse.ArgumentTypeError(f"no such framework or driver of {language}: {way}; there are {', '.join(ways) or 'none'}")
    return named


def kinds(text, topology):
    if text in ("", "all"):
        return None
    return kinds_of(text) if topology == "single" else servers.kinds_of(text)


def arguments():
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--seed", type=int, help="of everything that is random; a new one where none is given")
    parser.add_argument("--minutes", type=float, default=2, help="for how long there are faults (2)")
    parser.add_argument("--faults", default="all", metavar="LIST", help="kind, or kind:target, by commas; all, or none (all)")
    parser.add_argument("--doors", type=doors, metavar="LIST",
                        help="of the workload, by commas: sql, lib, http, run, message (all of these), and the clients: node, python, go, java; or a part of one: node/http; and a framework or driver: node/http/fastify")  # fmt: skip
    parser.add_argument("--topology", choices=sorted(TOPOLOGIES), default="single", help="servers: two nodes that share the tenants, and slots that move; citus: the same in a cluster of Citus")
    parser.add_argument("--broker", choices=("nats", "rabbitmq", "kafka", "sqs"), default="nats")
    parser.add_argument("--keep", metavar="DIR", help="keep the log, the facts and the logs of all processes there")
    parser.add_argument("--shrink", type=float, default=0, metavar="MINUTES", help="after a violation look for a smaller run that shows it")
    parser.add_argument("--mutation", choices=sorted(mutations.MUTATIONS), help="break the system in this way")
    parser.add_argument("--selftest", action="store_true", help="each mutation must be found, and nothing without one")
    parser.add_argument("--seeds", action="store_true", help=f"run what {SEEDS_FILE.name} lists")
    given = parser.parse_args()
    try:
        given.faults = kinds(given.faults, given.topology)
    except ValueError as unknown:
        parser.error(str(unknown))
    return given


def say(text):
    print(text, flush=True)


def one(plan, given):
    result = run(plan, given.keep, say)
    say(result.text())
    if result.status == 1 and given.shrink:
        rule = result.violations[0].rule
        kinds = sorted({record["fault"] for record in result.history.records if record["kind"] == "fault"})
        best = shrink.shrink(plan, kinds, rule, lambda smaller: run(smaller).rules, given.shrink, say)
        say(f"the smallest run found that breaks {rule}: {best.command()}")
    return result.status


def main():
    given = arguments()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    say(f"seed {seed}")
    if citus.BINDIR is None and (mutations.MUTATIONS[given.mutation] if given.mutation else given).topology == "citus":
        say(citus.MISSING)
        return 2
    try:
        languages.prepared(languages.named(mutations.MUTATIONS[given.mutation].doors if given.mutation else given.doors))
    except languages.Missing as missing:
        say(str(missing))
        return 2
    if given.selftest:
        return selftest.main(seed, given, say)
    if given.seeds:
        return max((one(plan, given) for plan in read_seeds()), default=0)
    plan = Plan(seed, round(60 * given.minutes), given.broker, given.faults, given.doors, topology=given.topology)
    if given.mutation:
        plan = selftest.plan_of(mutations.MUTATIONS[given.mutation], plan)
    if given.keep:
        pathlib.Path(given.keep).mkdir(parents=True, exist_ok=True)
    return one(plan, given)


if __name__ == "__main__":
    sys.exit(main())
