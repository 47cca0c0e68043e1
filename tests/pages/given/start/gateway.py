# SPDX-License-Identifier: PostgreSQL
DATABASE = None
NEEDS = ("tcp", "python3")
# The workers of a gateway that root starts are another user, who cannot get to the private server's socket.
ENVIRONMENT = {"PGHOST": "127.0.0.1", "PGPORT": "5432"}
LANGUAGES = {"`service.py`": "", "python3 service.py": ""}  # it needs Python alone
