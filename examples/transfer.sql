-- SPDX-License-Identifier: PostgreSQL
-- Transfers between accounts, each booked once. No balance is ever incremented: a balance is the sum of the log's
-- entries, so there is no number that two attempts could both add to. Locks on the accounts' names let one transfer at a
-- time decide on them; the log's primary key still decides last.

CREATE SCHEMA IF NOT EXISTS bank;

CREATE TABLE IF NOT EXISTS bank.entry (
    account   text NOT NULL CHECK (account <> ''),
    number    bigint NOT NULL CHECK (number > 0),   -- of this account: 1, 2, 3, ... without a gap
    amount    numeric(18, 2) NOT NULL CHECK (amount <> 0),
    transfer  text NOT NULL,                        -- the key of the intent that booked it
    booked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (account, number),
    UNIQUE (transfer, account)
);

CREATE OR REPLACE VIEW bank.balance AS
    SELECT account, sum(amount) AS balance, max(number) AS entries FROM bank.entry GROUP BY account;

CREATE TABLE IF NOT EXISTS bank.closing (
    account   text NOT NULL,
    day       date NOT NULL,
    balance   numeric(18, 2) NOT NULL,
    PRIMARY KEY (account, day)
);

-- bank.book(payer, payee, amount, transfer): two entries, one transfer. The caller holds the locks of both accounts, so
-- the numbers are free. If they are not (a caller without locks, a snapshot older than the lock), the primary key shows
-- it: ON CONFLICT turns that into 40001, which every client retries.
CREATE OR REPLACE FUNCTION bank.book(payer text, payee text, amount numeric, transfer text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    booked integer;
BEGIN
    INSERT INTO bank.entry (account, number, amount, transfer)
    SELECT side.account, coalesce((SELECT max(e.number) FROM bank.entry AS e WHERE e.account = side.account), 0) + 1,
           side.amount, book.transfer
      FROM (VALUES (payer, -book.amount), (payee, book.amount)) AS side (account, amount)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS booked = ROW_COUNT;
    IF booked <> 2 THEN
        RAISE EXCEPTION USING ERRCODE = '40001',
            MESSAGE = format('another transfer was booked on %s or %s meanwhile', payer, payee);
    END IF;
END $$;

-- bank.transfer(key, payer, payee, amount, wait): books a transfer and returns the answer, the same bytes for every
-- attempt.
--   status 201  booked
--   status 402  the payer cannot pay: a final failure. To try again later, use a new key
--   status 422  the transfer is invalid: a final failure
-- Raises 55P03 if the accounts are busy for longer than wait: nothing has happened, attempt it again. Money comes from
-- the account 'world', the only one that may owe.
CREATE OR REPLACE FUNCTION bank.transfer(key text, payer text, payee text, amount numeric,
    wait interval DEFAULT '5 seconds') RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    fingerprint bytea := once.fingerprint(jsonb_build_array(payer, payee, amount));
    started       record;
    funds       numeric;
    answer      jsonb;
BEGIN
    started := once.start('transfers', key, fingerprint);
    IF started.verdict = 'replay_success' THEN
        RETURN started.response_body;
    END IF;
    IF (payer <> '' AND payee <> '' AND payer <> payee
        AND amount > 0 AND amount < 1e15 AND amount = round(amount, 2)) IS NOT TRUE THEN
        RETURN once.finish('transfers', key, fingerprint, 422, '{"error": "not a transfer"}', state => 'failed_final',
                           error_code => 'invalid_transfer');
    END IF;

    -- Always in the same order, so that two transfers in opposite directions take turns and never deadlock. Reads after
    -- the locks see the commits of their last holders.
    IF NOT (once.lock('account/' || least(payer, payee), wait)
            AND once.lock('account/' || greatest(payer, payee), wait)) THEN
        RAISE EXCEPTION USING ERRCODE = '55P03', MESSAGE = format('the accounts %s and %s are busy', payer, payee),
            HINT = 'Nothing was booked: attempt it again, with the same key.';
    END IF;
    funds := (SELECT sum(e.amount) FROM bank.entry AS e WHERE e.account = payer);
    IF payer <> 'world' AND coalesce(funds, 0) < amount THEN
        RETURN once.finish('transfers', key, fingerprint, 402, '{"error": "insufficient funds"}',
                           state => 'failed_final', error_code => 'insufficient_funds');
    END IF;

    PERFORM bank.book(payer, payee, amount, key);
    answer := jsonb_build_object('transfer', key, 'from', payer, 'to', payee, 'amount', amount);
    PERFORM once.emit('transfer.booked', answer, 'account', payer, scope => 'transfers', key => key);
    RETURN once.finish('transfers', key, fingerprint, 201, response_json => answer);
END $$;

-- bank.close_day(account, day): stores an account's balance at the end of a past day (in UTC), and returns it. NULL if
-- another session is doing it now: with try_lock the second does not wait for work that is being done. The primary key
-- keeps the result single; the lock only saves work. The account's lock lets a transfer of the day's last second finish
-- first.
CREATE OR REPLACE FUNCTION bank.close_day(account text, day date) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    day_end timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
    held    numeric;
BEGIN
    IF (day_end <= clock_timestamp()) IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('the day %s has not ended', day);
    END IF;
    IF NOT (once.try_lock('closing/' || account || '/' || day) AND once.lock('account/' || account, '5 seconds')) THEN
        RETURN NULL;
    END IF;
    INSERT INTO bank.closing (account, day, balance)
    SELECT close_day.account, close_day.day, coalesce(sum(e.amount), 0)
      FROM bank.entry AS e WHERE e.account = close_day.account AND e.booked_at < day_end
    ON CONFLICT DO NOTHING;
    SELECT c.balance INTO STRICT held
      FROM bank.closing AS c WHERE c.account = close_day.account AND c.day = close_day.day;
    RETURN held;
END $$;

GRANT USAGE ON SCHEMA bank TO once_app;
GRANT SELECT, INSERT ON bank.entry, bank.closing TO once_app;
GRANT SELECT ON bank.balance TO once_app;
