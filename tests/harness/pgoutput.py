# SPDX-License-Identifier: PostgreSQL
"""A client of a replication slot without Debezium: PostgreSQL's own pgoutput, protocol version 1 (manual, "Logical Replication Message Formats")."""

import select
import struct
import time

import psycopg2.extras

from .postgres import PATIENCE_S


class Reader:
    """One connection to one slot. Rows are dicts of text by column; a transaction's are kept when its commit has come."""

    def __init__(self, database, slot, publication, user="postgres"):
        self.connection = psycopg2.connect(database.dsn(user), connection_factory=psycopg2.extras.LogicalReplicationConnection)
        self.cursor = self.connection.cursor()
        options = {"proto_version": "1", "publication_names": publication}
        self.cursor.start_replication(slot_name=slot, decode=False, options=options)
        self.relations, self.rows, self.open = {}, [], None

    def close(self):
        self.connection.close()

    def read(self, confirm=True):
        """Everything that there is now. confirm: the server need not send it again."""
        while (message := self.cursor.read_message()) is not None:
            end = self.take(message.payload)
            if end and confirm:
                self.cursor.send_feedback(flush_lsn=end, force=True)
        if self.open is None and confirm and self.cursor.wal_end:
            self.cursor.send_feedback(flush_lsn=self.cursor.wal_end, force=True)
        return self.rows

    def read_until(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.read()):
            assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}"
            select.select([self.connection], [], [], 0.05)
        return self.rows

    def take(self, data):
        """Of a message; the end of the transaction, where it is one."""
        kind, at = data[:1], 1
        if kind == b"B":
            self.open = []
        elif kind == b"C":
            self.rows += self.open
            self.open = None
            return struct.unpack_from(">Q", data, 10)[0]
        elif kind == b"R":
            oid = struct.unpack_from(">I", data, 1)[0]
            namespace, name, rest = data[5:].split(b"\0", 2)
            at, columns = 3, []
            for _ in range(struct.unpack_from(">H", rest, 1)[0]):
                end = rest.index(b"\0", at + 1)
                columns.append(rest[at + 1 : end].decode())
                at = end + 9
            self.relations[oid] = f"{namespace.decode()}.{name.decode()}", columns
        elif kind == b"I":
            table, columns = self.relations[struct.unpack_from(">I", data, 1)[0]]
            row, at = {"table": table}, 8
            for column in columns:
                if data[at : at + 1] == b"t":
                    length = struct.unpack_from(">I", data, at + 1)[0]
                    row[column] = data[at + 5 : at + 5 + length].decode()
                    at += 5 + length
                else:
                    row[column] = None
                    at += 1
            self.open.append(row)
        return None
