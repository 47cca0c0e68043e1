#!/bin/sh
# SPDX-License-Identifier: PostgreSQL
# Tests the Python client: makes a virtual environment, installs the client and the drivers, runs its tests and mypy.
# Exit status: that of the tests; 77 where Python or its venv is missing. PGONCE_VENV: where the environment is kept.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
venv=${PGONCE_VENV:-$here/.venv}
if ! command -v "$python" >/dev/null || ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
  echo "left out: the Python client needs Python 3.9 or later with venv (Debian: python3-venv)"
  exit 77
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip -q --disable-pip-version-check install -e "$here" 'psycopg[binary,pool]>=3.1' psycopg2-binary asyncpg \
  'sqlalchemy[asyncio]>=2' fastapi httpx uvicorn python-multipart django flask flask-cors flask-sqlalchemy flask-wtf opentelemetry-api opentelemetry-sdk mypy pytest
cd "$here"
"$venv/bin/python" -m mypy
exec "$venv/bin/python" -m pytest -q -p no:cacheprovider tests "$@"
