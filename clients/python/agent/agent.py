# SPDX-License-Identifier: PostgreSQL
"""The agent of the Python client (spec/cases/README.md): agent.py CLIENT DRIVER DSN [PORT]. It says `ready`, and answers each line of JSON with another.

DRIVER is a name of drivers.py. With a PORT it serves HTTP there, for the torture (torture_service.py), by the framework that stands where DRIVER does."""

import sys


def url_of(dsn):
    said = dict(pair.split("=") for pair in dsn.split())
    return f"postgresql://{said['user']}@{said['hostaddr']}:{said['port']}/{said['dbname']}?connect_timeout={said.get('connect_timeout', 3)}"


def main(driver, dsn, port=None):
    # pylint: disable=import-outside-toplevel  # each takes long to load
    if port:
        import torture_service

        torture_service.serve(driver, int(port), url_of(dsn))
    else:
        import calls

        calls.serve(sys.stdin, driver, url_of(dsn), url_of)


if __name__ == "__main__":
    main(*sys.argv[2:])
