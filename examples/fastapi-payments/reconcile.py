# SPDX-License-Identifier: PostgreSQL
"""Decides charges that are in doubt, by asking the provider what it has charged for their keys. reconcile.py [SECONDS]: only those that have been in doubt for
this long (default 30), which must be longer than the provider needs for a request."""

import os
import sys

import httpx
import psycopg

PROVIDER = os.environ.get("PROVIDER_URL", "http://127.0.0.1:8090")
UNDECIDED = """
    SELECT tenant, key FROM once.in_doubt WHERE scope = 'charges' AND since < clock_timestamp() - %s * interval '1 second'"""


def main(after_s):
    with httpx.Client(base_url=PROVIDER) as provider, psycopg.connect("", autocommit=True) as connection:
        for tenant, key in connection.execute(UNDECIDED, (after_s,)).fetchall():
            found = provider.get("/charges", params={"reference": key}).raise_for_status()
            if found.json():
                state, reason, text = "succeeded", "the provider has charged it", httpx.Response(200, json=found.json()[0]).text
            else:
                state, reason, text = "failed_retryable", "the provider has not charged it", None
            connection.execute("SELECT once.resolve('charges', %s, %s, %s, response_text => %s, tenant => %s)", (key, state, reason, text, tenant))
            print(f"state={state} reason={reason!r}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 30)
