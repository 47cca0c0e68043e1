#!/usr/bin/python3
# SPDX-License-Identifier: PostgreSQL
"""What pages type of Kafka's own program kafka-topics.sh, against a real server: --create."""
import argparse
import os
import pathlib
import sys

for folder in pathlib.Path(__file__).resolve().parents:
    if (folder / "harness" / "kafka.py").exists():
        sys.path.insert(0, str(folder))
        break
else:
    sys.path.insert(0, os.environ["PGONCE_TESTS"])

from harness.kafka import Admin  # noqa: E402

parser = argparse.ArgumentParser(prog="kafka-topics.sh")
parser.add_argument("--bootstrap-server", required=True)
parser.add_argument("--create", action="store_true", required=True)
parser.add_argument("--topic", required=True)
parser.add_argument("--partitions", type=int, default=1)
parser.add_argument("--config", action="append", default=[])
given = parser.parse_args()
with Admin(given.bootstrap_server) as admin:
    admin.create(given.topic, given.partitions, dict(each.split("=", 1) for each in given.config))
print(f"Created topic {given.topic}.")
