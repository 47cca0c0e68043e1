# SPDX-License-Identifier: PostgreSQL
"""examples/orders: the program plays its file, and its proof fails when what it proves is broken."""

import json
import subprocess

from harness.postgres import clean_environment

from .conftest import EXAMPLES

REQUESTS = EXAMPLES / "orders/requests.jsonl"


def play(program, shop, path=REQUESTS):
    return subprocess.run(
        [program, "--dsn", shop.dsn("shop_app"), path],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )


def attempts():
    return [json.loads(line) for line in REQUESTS.read_text().splitlines() if line and not line.startswith("#")]


def row_of(played, attempt):
    return next(line for line in played.stdout.splitlines() if line.split()[:1] == [str(attempt)])


def test_the_file_is_played_and_the_proof_holds(shop, orders_example):
    played = play(orders_example, shop)
    assert played.returncode == 0, played.stdout + played.stderr
    assert "DOES NOT HOLD" not in played.stdout and played.stdout.count("holds") == 4
    placed = shop.value("SELECT count(*) FROM once.intent WHERE response_status = 201")
    assert shop.value("SELECT count(*) FROM orders.customer_order") == placed
    assert (
        shop.value("SELECT count(DISTINCT key) FROM once.outbox")
        == shop.value("SELECT count(*) FROM once.outbox")
        == placed
    )


def test_each_kind_of_attempt_gets_its_own_verdict(shop, orders_example):
    played = play(orders_example, shop)
    for number, attempt in enumerate(attempts(), start=1):
        row = row_of(played, number)
        if attempt["key"] == "checkout-1003" and attempt["request"]["total"] == 99.0:
            assert "P4002 mismatch" in row
        elif attempt["key"].startswith("checkout-2003"):
            assert "P4001 key_malformed" in row
        elif attempt["key"].startswith("0190163d"):
            assert "P4041 expired" in row
        elif attempt["key"] in ("checkout-2001", "checkout-2002"):
            assert "P4030 final_failure" in row and " 422 " in row
        elif "crash" in attempt:
            assert f"killed {attempt['crash']}" in row or "replay" in row
        else:
            assert " done " in row or " replay " in row
    assert "P4029 active" in played.stdout  # the client that tried while another hung in its transaction
    for crash in ("mid_effect", "before_commit", "during_commit", "after_commit"):
        assert f"killed {crash}" in played.stdout


def test_playing_it_again_does_nothing_again(shop, orders_example):
    play(orders_example, shop)
    before = shop.rows("SELECT * FROM orders.customer_order ORDER BY 1")
    events = shop.value("SELECT count(*) FROM once.outbox")
    again = play(orders_example, shop)
    assert again.returncode == 0, again.stdout
    assert " done " not in again.stdout and "killed" not in again.stdout
    assert shop.rows("SELECT * FROM orders.customer_order ORDER BY 1") == before
    assert shop.value("SELECT count(*) FROM once.outbox") == events


def test_the_proof_fails_when_an_order_was_placed_twice(shop, orders_example):
    play(orders_example, shop)
    # Broken on purpose: what a retry without an intent would have done.
    shop.execute(
        "INSERT INTO orders.customer_order (customer, cart, total) VALUES ('ada@example.net', 'cart-1 once more', 25.90)"
    )
    broken = play(orders_example, shop)
    assert broken.returncode == 1 and "DOES NOT HOLD" in broken.stdout


def test_the_proof_fails_when_an_answer_changes(shop, orders_example):
    # Broken on purpose: a store that does not give back the bytes that it was given (jsonb would be one).
    shop.execute(r"""CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                         NEW.response_body := NEW.response_body || '\x20'; RETURN NEW; END $$;
                     CREATE TRIGGER spoil BEFORE INSERT ON once.intent_d0 FOR EACH ROW EXECUTE FUNCTION spoil()""")
    broken = play(orders_example, shop)
    assert broken.returncode == 1 and "DOES NOT HOLD" in broken.stdout


def test_an_order_attempted_in_c_is_replayed_in_sql(shop, app, orders_example):
    play(orders_example, shop)
    stored = shop.value("SELECT response_body FROM once.peek('orders', 'checkout-1001')")
    assert (
        app(
            "SELECT orders.place('checkout-1001', %s)",
            '{"total": 25.9, "customer": "ada@example.net", "cart": "cart-1"}',
        )
        == stored
    )


def test_a_bad_file_and_a_missing_schema_are_named(shop, db, orders_example, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"client": "a", "key": "k", "request": {}}\n{"client": "a"}\n')
    played = play(orders_example, shop, bad)
    assert played.returncode == 2 and "line 2" in played.stderr
    bad.write_text('{"client": "a", "key": "k", "request": {}, "crash": "sometime"}\n')
    assert "before_commit" in play(orders_example, shop, bad).stderr
    db.execute("DROP SCHEMA orders CASCADE")
    played = play(orders_example, shop)
    assert played.returncode == 2 and "orders.sql" in played.stderr


def test_no_server_is_one_line(orders_example, tmp_path):
    played = subprocess.run(
        [orders_example, "--dsn", f"host={tmp_path}", REQUESTS],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )
    assert played.returncode == 2 and str(tmp_path) in played.stderr
