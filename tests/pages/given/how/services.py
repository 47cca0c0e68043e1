# SPDX-License-Identifier: PostgreSQL
# pg_cron is on few machines: its one function, which does at once what the schedule says. CALL cannot run inside a function: the text is looked at.
BEFORE = """
CREATE SCHEMA cron;
CREATE FUNCTION cron.schedule(job_name text, schedule text, command text) RETURNS bigint LANGUAGE sql
    AS $$ SELECT CASE WHEN command = 'CALL once.keep()' AND schedule = '* * * * *' THEN 1 ELSE 1 / 0 END $$;
"""
AFTER_SH = """
test "$(psql -Atc "SELECT count(*) FROM pg_namespace WHERE nspname ~ '^once'")" = 0
"""
# The packages make this folder.
BEFORE_SH = "mkdir -p $HOME/machine/etc/pgonce"
