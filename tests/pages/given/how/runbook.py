# SPDX-License-Identifier: PostgreSQL
FILES = {
    "answer.json": '{"charge": "ch_17"}\n',
    "pgonce.conf": "[relay orders]\nsink = stdout\n\n[consume stock]\nsource = nats\nurl = nats://127.0.0.1:4222\nstream = ORDERS\nhandler = shop.take_stock\n",
}
BEFORE = """
CREATE ROLE app LOGIN;
SELECT verdict FROM once.claim('payments', 'order-20', once.fingerprint('x'::text), lease => '2 hours');
SELECT once.finish_new('payments', 'order-16', once.fingerprint('x'::text, 'customer-17'), 201, result_type => 'charge', result_id => 'ch_17', tenant => 'customer-17');
SELECT once.fail('payments', k, (once.claim('payments', k, once.fingerprint('x'::text))).fence, NULL, 'no_answer')
  FROM unnest(ARRAY['order-17', 'order-18', 'order-19']) AS k;
"""
BEFORE_SH = """psql -c "SELECT taken FROM once_job.relay_take('orders')" """
