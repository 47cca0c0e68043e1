# SPDX-License-Identifier: PostgreSQL
"""The agent of the Python client (spec/cases/README.md): agent.py CLIENT DRIVER DSN [PORT]. It says `ready`, and answers each line of JSON with another.

DRIVER is a name of drivers.py, for the calls of spec/cases; or a number, for the torture: odd ones are blocking and have a pool of psycopg (blocking.py), even ones use
asyncio and asyncpg (asynchronous.py). With a PORT it serves HTTP there (torture_service.py)."""

import asyncio
import sys


def url_of(dsn):
    said = dict(pair.split("=") for pair in dsn.split())
    return f"postgresql://{said['user']}@{said['hostaddr']}:{said['port']}/{said['dbname']}"


def main(driver, dsn, port=None):
    # pylint: disable=import-outside-toplevel  # each takes long to load
    if not driver.isdigit():
        import calls

        calls.serve(sys.stdin, driver, url_of(dsn))
    elif port:
        import torture_service

        torture_service.serve(int(driver), int(port), dsn)
    elif int(driver) % 2:
        import blocking

        blocking.serve(sys.stdin, dsn)
    else:
        import asynchronous

        asyncio.run(asynchronous.serve(sys.stdin, dsn))


if __name__ == "__main__":
    main(*sys.argv[2:])
