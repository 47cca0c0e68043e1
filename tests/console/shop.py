# SPDX-License-Identifier: PostgreSQL
"""A database for the tests of the console: a charge that succeeded, doubts, dead events, hostile names, and the people who look at them."""

PEOPLE = {"anna": "once_admin", "ben": "once_admin", "vera": "once_reader"}
SCRIPT = '<script>window.pwned = 1; alert("pgonce")</script>'
IMAGE = '"><img src=x onerror="window.pwned = 1">'
KEY = f"{SCRIPT}{IMAGE}"
TURNED = "invoice \u202egnp.exe"
MANY = 100_000
FINGERPRINT = "once.fingerprint('r'::bytea)"


class Relay:
    """A relay's session that parks what it is told to."""

    def __init__(self, db, name):
        self.name, self.connection = name, db.connect()
        self.cursor = self.connection.cursor()
        self.cursor.execute("SELECT * FROM once_job.relay_take(%s)", (name,))
        self.seen = self.cursor.fetchone().seen

    def pass_all(self):
        self.cursor.execute("SELECT reading FROM once_job.relay_look(%s, %s)", (self.name, self.seen))
        reading = self.cursor.fetchone().reading
        self.cursor.execute("SELECT once_job.relay_settle(%s, %s, NULL, 0, NULL, NULL)", (self.name, reading))
        self.seen = reading

    def park(self, event, state, error):
        self.cursor.execute(
            "SELECT once_job.relay_settle(%s, %s, NULL, 0, NULL, ARRAY(SELECT ROW(o.id, o.xid, o.day, o.event_id, o.topic, o.tenant, o.aggregate_type,"
            " o.aggregate_id, %s, 3, 60000, %s, false)::once.parking FROM once.outbox AS o WHERE o.event_id = %s))", (self.name, self.seen, state, error, event))


class Shop:
    """A database of the server, and the things in it that the tests look for."""

    def __init__(self, server):
        self.server, self.db = server, server.new_database()
        db = self.db
        for name, role in PEOPLE.items():
            db.execute(f"DO $$ BEGIN CREATE ROLE {name} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$; GRANT {role} TO {name}")
        db.execute("SELECT once.set_scope('charge', on_stale => 'takeover')")
        db.execute("CREATE FUNCTION verify_refund(tenant text, scope text, key text) RETURNS once.verification LANGUAGE sql AS"
                   " $$ SELECT 'happened', 201, convert_to('{\"refund\": \"rf_1\"}', 'UTF8'), NULL::jsonb, 'refund', 'rf_1' $$")
        db.execute("SELECT once.set_scope('refund', on_stale => 'verify', verify => 'public.verify_refund')")
        self.relay = Relay(db, "orders")
        self.charge_with_a_takeover()
        self.relay.pass_all()
        self.dead = str(db.value("SELECT once.emit('order.cancelled', '{\"order\": 16}', 'order', '16')"))
        self.relay.park(self.dead, "dead", "503 Service Unavailable")
        for name in ("doubt-1", "doubt-2", "doubt-3", "doubt-4"):
            self.doubt(name)
        db.execute("CALL once.keep(10)")
        self.doubt("refund-1", "refund")  # after the keeper, which would ask the verify function
        self.hostile = None  # the event, once add_hostile was called

    def charge_with_a_takeover(self):
        """Two minutes ago an attempt began that fell silent; the second charged the customer."""
        claim = f"SELECT once.claim('charge', 'order-17', {FINGERPRINT}, %s, traceparent => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01')"
        self.db.execute(claim, "worker 7")
        self.db.execute("UPDATE once.intent SET created_at = created_at - interval '120 s', updated_at = updated_at - interval '120 s',"
                        " lease_until = lease_until - interval '120 s' WHERE key = 'order-17'")
        self.db.execute(claim, "worker 9")
        self.db.execute("UPDATE once.decision SET decided_at = decided_at - interval '20 s' WHERE key = 'order-17'")
        self.db.execute("SELECT once.emit('order.paid', '{\"amount\": 12.50}', 'order', '17', scope => 'charge', key => 'order-17')")
        self.db.execute("SELECT once.complete('charge', 'order-17', 2, 201, response_json => '{\"charge\": \"ch_17\", \"amount\": 12.50}',"
                        " response_headers => '{\"Content-Type\": \"application/json\"}', result_type => 'charge', result_id => 'ch_17')")

    def add_hostile(self):
        """Markup, and letters that turn the line round, in each name, error, payload and answer that there is. Once."""
        if self.hostile is not None:
            return
        self.db.execute("SELECT once.set_scope(%s, lease => '1 minute')", SCRIPT)
        self.doubt(KEY, SCRIPT, error=IMAGE, owner=SCRIPT, tenant=TURNED)
        self.db.execute(f"SELECT once.claim(%s, 'answered', {FINGERPRINT}, %s)", SCRIPT, IMAGE)
        self.db.execute("SELECT once.complete(%s, 'answered', 1, 201, response_json => to_jsonb(%s::text), response_headers => jsonb_build_object('X-Note', %s::text),"
                        " result_type => %s, result_id => %s)", SCRIPT, SCRIPT, IMAGE, SCRIPT, IMAGE)
        self.hostile = str(self.db.value("SELECT once.emit(%s, to_jsonb(%s::text), %s, %s, scope => %s, key => 'answered', event_type => %s)",
                                         SCRIPT, IMAGE, SCRIPT, IMAGE, SCRIPT, IMAGE))
        self.relay.park(self.hostile, "dead", f"503 {IMAGE}")

    def doubt(self, key, scope="charge", error="no answer within 30 s", owner="worker 7", tenant=""):
        self.db.execute(f"SELECT once.claim(%s, %s, {FINGERPRINT}, %s, tenant => %s)", scope, key, owner, tenant)
        self.db.execute("SELECT once.fail(%s, %s, 1, NULL, 'provider_timeout', %s, tenant => %s)", scope, key, error, tenant)

    def state(self, key, scope="charge"):
        return self.db.value("SELECT state::text FROM once.intent WHERE scope = %s AND key = %s", scope, key)

    def fill(self):
        """A hundred thousand intents, the last of which has the result that a test looks for by reading on."""
        self.db.execute("INSERT INTO once.intent (created_at, updated_at, completed_at, bucket, fence, attempts, response_status, state, tenant, scope, key,"
                        f" fingerprint, result_type, result_id) SELECT t, t, t, 0, 1, 1, 201, 'succeeded', '', 'bulk', 'bulk-' || n, {FINGERPRINT}, 'bulk', 'b_' || n"
                        " FROM generate_series(1, %s) AS n, LATERAL (SELECT clock_timestamp() - n * interval '1 second' AS t) AS at", MANY)
