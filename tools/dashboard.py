#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Writes dashboards/grafana.json from the table below: one row a panel. --check: fails where the file differs.
A query may only name metrics of docs/reference/metrics.md, which is generated from the sources; both runs check that."""
import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "dashboards/grafana.json"
METRICS = ROOT / "docs/reference/metrics.md"
WIDTH = 24  # of Grafana's grid
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def chart(stacked, title, unit, width, about, *queries):
    """Queries: (legend, query), with JOB for what the dashboard's variable `job` selects."""
    return {
        "type": "timeseries", "title": title, "description": about, "unit": unit, "width": width, "height": 8 if width == WIDTH else 7, "queries": queries,
        "defaults": {"custom": {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 20 if stacked else 5,
                                "stacking": {"mode": "normal" if stacked else "none", "group": "A"}, "showPoints": "never"}},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}},
    }


def lines(title, unit, width, about, *queries):
    return chart(False, title, unit, width, about, *queries)


def stacked(title, unit, width, about, *queries):
    return chart(True, title, unit, width, about, *queries)


def stat(title, unit, colors, about, query):
    """One number. colors: "green orange:900 red:3600" is green below 900, and so on."""
    steps = [(color, int(least)) if least else (color, None)
             for color, _, least in (step.partition(":") for step in colors.split())]
    return {
        "type": "stat", "title": title, "description": about, "unit": unit, "width": 4, "height": 4, "queries": [("", query)],
        "defaults": {"thresholds": {"mode": "absolute", "steps": [{"color": color, "value": least} for color, least in steps]}},
        "options": {"colorMode": "background", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "textMode": "value"},
    }


# (section, its panels): panels stand side by side, in this order. The first section has no title.
SECTIONS = [
    ("", [
        stat("Keeper: last success", "s", "green orange:900 red:3600", "Time since a keeper last finished its rounds.",
             'time() - max(pgonce_keeper_last_success_timestamp_seconds{JOB,step="days"})'),
        stat("Days ahead", "none", "red green:1", "Coming days that already have their partition.",
             "min(pgonce_partitions_ahead{JOB})"),
        stat("In doubt", "none", "green red:1", "Intents that wait for an operator's decision.",
             "sum(max by (job, scope) (pgonce_in_doubt{JOB})) or vector(0)"),
        stat("Stale", "none", "green orange:1 red:100", "Attempts whose lease ended without a report.",
             "sum(max by (job, scope) (pgonce_stale{JOB})) or vector(0)"),
        stat("Outbox lag", "s", "green orange:60 red:300", "The age of the oldest event that a relay still has to deliver.",
             "max(pgonce_outbox_lag_seconds{JOB}) or vector(0)"),
        stat("Dead events and messages", "none", "green red:1", "They wait for an operator.",
             '(sum(max by (job, relay) (pgonce_outbox_parked{JOB,state="dead"})) or vector(0)) '
             '+ (sum(max by (job, consumer) (pgonce_inbox_parked{JOB,state="dead"})) or vector(0))'),
    ]),
    ("Intents", [
        stacked("Attempts by verdict", "ops", 24, "The verdicts that attempts got. new: the first attempt of its intent.",
                ("{{verdict}}", "sum by (verdict) (max by (job, verdict) (rate(pgonce_intents_total{JOB}[$__rate_interval])))")),
        lines("Share of replays", "percentunit", 8, "If this stays at zero, check that the client does not make a new key for each attempt.",
              ("{{job}}", 'max by (job) (rate(pgonce_intents_total{JOB,verdict="replay"}[$__rate_interval])) '
                          '/ on (job) sum by (job) (max by (job, verdict) (rate(pgonce_intents_total{JOB}[$__rate_interval])))')),
        lines("Mismatches", "ops", 8, "A known key with another request.",
              ("{{job}}", 'max by (job) (rate(pgonce_intents_total{JOB,verdict="mismatch"}[$__rate_interval]))')),
        lines("Oldest stale attempt", "s", 8, "From the keeper's last sweep.",
              ("{{scope}}", "max by (job, scope) (pgonce_stale_oldest_seconds{JOB})")),
    ]),
    ("Events and messages", [
        lines("Events to be delivered", "short", 6, "Events that each relay still has to read or deliver.",
              ("{{relay}} {{topic}}", "max by (job, relay, topic) (pgonce_outbox_pending{JOB})")),
        lines("Events that no relay takes", "short", 6, "By topic. No relay will publish them: start one with these topics.",
              ("{{topic}}", "max by (job, topic) (pgonce_outbox_untaken{JOB})")),
        lines("Outbox lag", "s", 6, "The age of the oldest of them.",
              ("{{relay}}", "max by (job, relay) (pgonce_outbox_lag_seconds{JOB}) or vector(0)")),
        lines("Events delivered", "ops", 6, "Counted by the relays.",
              ("{{relay}}", "sum by (job, relay) (rate(pgonce_relay_delivered_total{JOB}[$__rate_interval]))"),
              ("{{relay}} refused", "sum by (job, relay) (rate(pgonce_relay_refused_total{JOB}[$__rate_interval]))")),
        lines("Parked events", "short", 8, "waiting and retrying end automatically; dead needs an operator.",
              ("{{relay}} {{state}}", "max by (job, relay, state) (pgonce_outbox_parked{JOB})")),
        lines("Messages by verdict", "ops", 8, "process: applied for the first time. A duplicate had no effect.",
              ("{{verdict}}", "sum by (verdict) (max by (job, verdict) (rate(pgonce_inbox_total{JOB}[$__rate_interval])))")),
        lines("Parked messages", "short", 8, "waiting and retrying end automatically; dead needs an operator.",
              ("{{consumer}} {{state}}", "max by (job, consumer, state) (pgonce_inbox_parked{JOB})")),
        lines("WAL kept for captures", "bytes", 8,
              "WAL that the server keeps for a replication slot that counts as a relay. It grows while the client is away, until the disk is full or max_slot_wal_keep_size invalidates the slot.",
              ("{{relay}}", "max by (job, relay) (pgonce_capture_kept_bytes{JOB})")),
        lines("Captures: behind", "bytes", 8, "WAL that the slot's client has not confirmed. It grows even with a quiet outbox if the client has no heartbeat.",
              ("{{relay}}", "max by (job, relay) (pgonce_capture_behind_bytes{JOB})")),
        lines("Captures: clients", "short", 8,
              "Active: a client is connected to the slot. Broken: no client can follow it, and the outbox is held until an operator decides.",
              ("{{relay}} active", "max by (job, relay) (pgonce_capture_active{JOB})"),
              ("{{relay}} broken", "max by (job, relay) (pgonce_capture_broken{JOB})")),
    ]),
    ("Action needed", [
        lines("Relays: away, hanging, full, late", "short", 12, "1, or the number of hosts: each has an alert.",
              ("{{relay}}: sink away", "max by (relay) (pgonce_relay_sink_away{JOB})"),
              ("{{relay}}: hosts hanging", "max by (relay) (pgonce_relay_hosts_hanging{JOB})"),
              ("{{relay}}: parked_max", "max by (relay) (pgonce_relay_full{JOB})"),
              ("{{relay}}: permit late", "max by (relay) (pgonce_relay_permit_late{JOB})"),
              ("{{relay}}: dead_topic refused", "sum by (relay) (increase(pgonce_relay_dead_unsent_total{JOB}[$__rate_interval]))")),
        lines("Consumers: stalled, away, full, lost", "short", 12, "Each has an alert.",
              ("{{consumer}}: stalled", "max by (consumer) (pgonce_consume_stalled{JOB})"),
              ("{{consumer}}: source away", "max by (consumer) (pgonce_consume_source_away{JOB})"),
              ("{{consumer}}: endpoint away", "max by (consumer) (pgonce_consume_endpoint_away{JOB})"),
              ("{{consumer}}: parked_max", "max by (consumer) (pgonce_consume_full{JOB})"),
              ("{{consumer}}: dead_topic refused", "sum by (consumer) (increase(pgonce_consume_dead_unsent_total{JOB}[$__rate_interval]))"),
              ("{{consumer}}: lost to retention", "sum by (consumer) (pgonce_consume_lost_total{JOB})")),
    ]),
    ("Keeping", [
        lines("Rows and partitions worked on, by step", "ops", 8, "Counted by the keeper that holds the lease.",
              ("{{step}}", "sum by (job, step) (rate(pgonce_keeper_done_total{JOB}[$__rate_interval]))")),
        lines("Failing steps", "none", 8, "1: the last run of the step failed.",
              ("{{step}}", "max by (job, step) (pgonce_keeper_failing{JOB})")),
        lines("Retention held, days closing", "none", 8, "Nothing that may be redelivered is deleted.",
              ("held by {{what}}", "max by (job, what) (pgonce_retention_held{JOB})"),
              ("days closing", "max by (job) (pgonce_partitions_closing{JOB})"),
              ("clock", "max by (job) (pgonce_clock_held{JOB})")),
    ]),
    ("Storage", [
        stacked("Tables", "bytes", 8, "With indexes and partitions.",
                ("{{table}}", "max by (job, table) (pgonce_table_bytes{JOB})")),
        stacked("Days of intents", "bytes", 8, "Each day is dropped as a whole when it is past the horizon.",
                ("{{day}}", 'topk(15, max by (job, day) (pgonce_partition_bytes{JOB,table="intent"}))')),
        lines("Oldest transaction", "s", 4, "It holds back cleaning.",
              ("{{job}}", "max by (job) (pgonce_oldest_transaction_seconds{JOB})")),
        lines("Transaction ids used", "short", 4, "At 2 billion the server stops writing.",
              ("{{job}}", "max by (job) (pgonce_xid_age{JOB})")),
    ]),
]


def placed(sections):
    """The panels as Grafana wants them, with their places and numbers."""
    panels, x, y, height = [], 0, 0, 0
    for section, rows in sections:
        if section:
            x, y, height = 0, y + height, 0
            panels.append({"type": "row", "title": section, "collapsed": False, "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}, "panels": []})
            y += 1
        for row in rows:
            if x + row["width"] > WIDTH:
                x, y, height = 0, y + height, 0
            panels.append({
                "type": row["type"], "title": row["title"], "description": row["description"], "datasource": SOURCE,
                "gridPos": {"x": x, "y": y, "w": row["width"], "h": row["height"]},
                "targets": [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query.replace("JOB", 'job=~"$job"'), "legendFormat": legend}
                            for i, (legend, query) in enumerate(row["queries"])],
                "fieldConfig": {"defaults": {"unit": row["unit"], "min": 0, **row["defaults"]}, "overrides": []},
                "options": row["options"],
            })
            x, height = x + row["width"], max(height, row["height"])
    return [{"id": number, **panel} for number, panel in enumerate(panels, 1)]


def dashboard():
    jobs = "label_values(pgonce_contract_version, job)"
    return {
        "title": "pgonce", "uid": "pgonce", "tags": ["pgonce", "postgresql"], "schemaVersion": 38, "version": 1, "editable": True, "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"}, "timezone": "browser", "annotations": {"list": []}, "links": [],
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0, "refresh": 1},
            {"name": "job", "label": "Database", "type": "query", "datasource": SOURCE, "query": {"query": jobs, "refId": "jobs"}, "definition": jobs,
             "includeAll": True, "allValue": ".*", "multi": True, "current": {"text": "All", "value": "$__all"}, "refresh": 2, "sort": 1}]},
        "panels": placed(SECTIONS),
    }


def unknown_metrics(made):
    """What the dashboard names and no program serves."""
    return sorted(set(re.findall(r"pgonce_\w+", json.dumps(made["panels"]) + made["templating"]["list"][1]["definition"]))
                  - set(re.findall(r"`(pgonce_\w+)`", METRICS.read_text())))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    made = dashboard()
    if unknown := unknown_metrics(made):
        sys.exit(f"tools/dashboard.py: no metric of docs/reference/metrics.md: {', '.join(unknown)}")
    text = json.dumps(made, indent=1) + "\n"
    if not check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit("dashboards/grafana.json is not what tools/dashboard.py writes: edit its table, then run it")


if __name__ == "__main__":
    main()
