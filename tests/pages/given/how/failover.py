# SPDX-License-Identifier: PostgreSQL
BEFORE = """
CREATE TABLE shop_order (id bigint PRIMARY KEY);
SELECT once.finish_new('orders', 'o-1', once.fingerprint('tea'::text), 201);
"""
BEFORE_SH = """psql -c "SELECT taken FROM once_job.relay_take('orders')" """
# The copy remembers.
AFTER_SH = """
test "$(psql -d restored -Atc "SELECT verdict FROM once.try_start('orders', 'o-1', once.fingerprint('tea'::text))")" = replay_success
"""
