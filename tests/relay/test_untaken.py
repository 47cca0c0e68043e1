# SPDX-License-Identifier: PostgreSQL
"""The metric of events that no relay takes, beside relays whose routes have conditions or leave events out: it knows topics alone."""

from harness.scrape import address_in, scrape

from .running import Relay, emit, passed_all

UNTAKEN = "SELECT labels->>'topic', value FROM once.metrics() WHERE name = 'pgonce_outbox_untaken' ORDER BY 1"


def test_what_a_route_leaves_out_is_taken_and_what_no_route_names_is_not(db, tmp_path):
    connection = db.connect()
    for topic in ("order.created", "order.paid", "audit", "mail", "mail"):
        emit(connection, 1, topic=topic)
    assert db.rows(UNTAKEN) == [("audit", 1), ("mail", 2), ("order.created", 1), ("order.paid", 1)]
    routes = ["order.* if aggregate = invoice and header region = eu -> invoices", "order.* if type = order.paid -> paid", "order.* -> /dev/null", "audit -> /dev/null"]
    with Relay(tmp_path, db.dsn(), arguments=("--metrics", "127.0.0.1:0"), route=routes) as relay:
        relay.until_true(lambda: db.rows(UNTAKEN) == [("mail", 2)] and passed_all(db), "the relay to be through")
        left_out = sum(scrape(address_in(relay.err.read_text()))["pgonce_relay_left_out"].samples.values())
        assert relay.stop() == 0
    assert (left_out, len(relay.delivered())) == (2, 1)
    assert db.rows(UNTAKEN) == [("mail", 2)]  # what takes them may be away for a while
    with Relay(tmp_path, db.dsn(), "rest", route="mail -> {topic}") as rest:
        rest.until_true(lambda: db.rows(UNTAKEN) == [("", 0)], "it to be taken")
        assert rest.stop() == 0
