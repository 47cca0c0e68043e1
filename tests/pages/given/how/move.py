# SPDX-License-Identifier: PostgreSQL
SETTINGS = {"wal_level": "logical"}
BEFORE_SH = """createdb app2
psql -q -d app -c 'CALL once.divide(true)'
pgonce init --dsn dbname=app2 --join dbname=app"""
AFTER_SH = """test "$(psql -d app2 -Atc 'SELECT count(*) FROM once.slots() WHERE open')" = 34"""
PATIENCE_S = 180
