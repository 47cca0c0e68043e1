# SPDX-License-Identifier: PostgreSQL
BEFORE = """
SELECT once.finish_new('orders', 'o-1', once.fingerprint('{"item": "tea"}'::jsonb, 'customer-17'), 201, response_json => '{"mail": "ada@example.com"}',
                       response_headers => '{"Content-Type": "application/json"}', result_type => 'order', result_id => '1', tenant => 'customer-17');
SELECT once.emit('order.placed', '{"mail": "ada@example.com"}', tenant => 'customer-17');
"""
# The retry gets its status without a body, and runs nothing.
AFTER_SH = """
test "$(psql -Atc "SELECT verdict, response_status, response_body IS NULL FROM once.try_start('orders', 'o-1', once.fingerprint('{\\"item\\": \\"tea\\"}'::jsonb, 'customer-17'), 'customer-17')")" = "replay_success|201|t"
"""
