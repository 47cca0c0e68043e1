# SPDX-License-Identifier: PostgreSQL
"""The topology `citus`: as servers.py, and the two nodes are the workers of a cluster of Citus, each with a contract that is anchored (once.anchor). The
effects and what they count on are distributed tables, so that memory and effect of many attempts are on different nodes. The coordinator has a contract without
tenants. Transactions of the level SERIALIZABLE conflict with each other (citus.sql), so that their COMMIT fails where their memory is, after the other node."""

import os
import pathlib

from harness.postgres import PORT, install_script, wait_until

from . import facts as facts_of
from .servers import MORE_AGGREGATES, NAMES, SETTINGS, Servers
from .system import PATIENCE_S

HERE = pathlib.Path(__file__).parent
BINDIR = os.environ.get("PGONCE_CITUS_BINDIR")
MISSING = "TOPOLOGY=citus needs Citus: PGONCE_CITUS_BINDIR names the programs of a PostgreSQL that has it (make test-citus SOURCE=DIR builds one into build-citus/bin)"
SHARDS = 8
PLACES = """
    SELECT a.id, p.nodename
      FROM generate_series(1, 500) AS n
     CROSS JOIN LATERAL (SELECT 'a' || n AS id) AS a
     CROSS JOIN LATERAL get_shard_id_for_distribution_column('torture.effect', a.id) AS s (shard)
      JOIN pg_dist_shard_placement AS p ON p.shardid = s.shard"""
FIRST_OF_THE_REST = "-- The effects that stand for something elsewhere"  # in schema.sql: from there on each node has its own


class Cluster(Servers):
    names = (*NAMES, "coordinator")
    bindir = BINDIR
    settings = SETTINGS | {
        "shared_preload_libraries": "citus", "citus.node_conninfo": "sslmode=disable", "citus.enable_statistics_collection": "off",
        "citus.recover_2pc_interval": "1s", "max_prepared_transactions": "150", "max_worker_processes": "32",
    }  # fmt: skip
    preamble = ("SET citus.enable_ddl_propagation = off",)

    @property
    def coordinator(self):
        return self.servers[len(NAMES)]

    def start(self):
        if BINDIR is None:
            raise RuntimeError(MISSING)
        return super().start()

    def _prepare(self):
        for server in self.servers:
            self._script(server, f"ALTER SYSTEM SET citus.local_hostname = '{server.server.directory}'", "SELECT pg_reload_conf()", "CREATE EXTENSION citus")
        self._script(self.coordinator, f"SELECT citus_set_coordinator_host('{self.coordinator.server.directory}', {PORT})",
                     *(f"SELECT citus_add_node('{node.server.directory}', {PORT})" for node in self.nodes), install_script())  # fmt: skip
        shared, _ = halves()
        # An effect is where its aggregate is, so that it changes one node, without the anchor by an ordinary COMMIT there.
        distributed = (f"SELECT create_distributed_table('torture.aggregate', 'id', colocate_with => 'none', shard_count => {SHARDS})",
                       "SELECT create_distributed_table('torture.effect', 'aggregate', colocate_with => 'torture.aggregate')")  # fmt: skip
        self._script(self.coordinator, "SET citus.enable_ddl_propagation = on", shared.replace("TO once_app", "TO PUBLIC"), *distributed, MORE_AGGREGATES)

    def _schema(self, node):
        self._script(node, halves()[1], (HERE / "citus.sql").read_text())

    def _complete(self):
        for server in (self.coordinator, *self.nodes):
            self._script(server, "SELECT once.anchor()")

    def heal(self):
        super().heal()
        self.settle()

    def settle(self):
        """Until Citus has decided about each transaction that is prepared now: it may be acknowledged, and its effect is not to be seen yet. psycopg2.Error: a
        server is away."""
        prepared = {server: self.prepared(server) for server in self.servers}
        for server, those in prepared.items():
            wait_until(lambda server=server, those=those: not those & self.prepared(server), f"prepared transactions of {server.name}")

    @staticmethod
    def prepared(server):
        return set(server.value("SELECT coalesce(array_agg(gid), '{}') FROM pg_prepared_xacts"))

    def collect(self, online=False):
        self.settle()
        found = super().collect(online)
        serves = {row["slot"]: row["node"] for row in found["slots"]}
        found["elsewhere"] = sum(row["node"] != serves.get(self.slots[row["tenant"]]) for row in found["effects"])
        return found

    def effects(self):
        """node: the one that has the row."""
        names = {str(node.server.directory): node.name for node in self.nodes}
        with facts_of.Database(self.direct_dsn(self.coordinator)) as database:
            places = {row["id"]: names[row["nodename"]] for row in database.rows(PLACES)}
            return [row | {"node": places[row["aggregate"]]} for row in database.rows(facts_of.EFFECTS)]

    @staticmethod
    def number(found):
        """The steps of an aggregate are counted by all nodes together."""


def halves():
    """schema.sql: what the cluster has once, and what each node has."""
    shared, mark, rest = (HERE / "schema.sql").read_text().partition(FIRST_OF_THE_REST)
    assert mark, FIRST_OF_THE_REST
    return shared, mark + rest
