-- SPDX-License-Identifier: PostgreSQL
-- What pgonce is compared with: the well-known pattern of an idempotency table that is claimed, inspected under a row
-- lock, and marked, with an order and its outbox event in the same transaction. Statement for statement as its users
-- write it, with two repairs, so that the comparison is fair: no argument of type name (its collation would keep every
-- look-up off the index), and no handler that covers up the first error with a second one.

CREATE SCHEMA seed000;

CREATE TYPE seed000.status AS ENUM ('processing', 'succeeded', 'failed_retryable', 'failed_final');

CREATE TABLE seed000.request (
    scope           text NOT NULL CHECK (scope <> ''),
    key             text NOT NULL CHECK (key <> ''),
    request_hash    text NOT NULL CHECK (request_hash <> ''),
    status          seed000.status NOT NULL,
    result_ref_type text,
    result_ref_id   uuid,
    response_body   jsonb,
    failure_code    text,
    failure_message text,
    claimed_by      text,
    claimed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    locked_until    timestamptz,
    attempt_count   integer NOT NULL DEFAULT 1 CHECK (attempt_count >= 1),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at      timestamptz NOT NULL,
    PRIMARY KEY (scope, key),
    CHECK (expires_at > created_at)
);

CREATE TABLE seed000.customer_order (
    order_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    customer  text NOT NULL,
    cart      text NOT NULL,
    status    text NOT NULL DEFAULT 'created',
    total     numeric(18, 2) NOT NULL CHECK (total >= 0),
    placed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (customer, cart)
);

CREATE TABLE seed000.outbox_event (
    outbox_id      uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    event_type     text NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id   uuid NOT NULL,
    scope          text NOT NULL,
    key            text NOT NULL,
    payload        jsonb NOT NULL,
    status         text NOT NULL DEFAULT 'pending',
    attempt_count  integer NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at   timestamptz,
    UNIQUE (scope, key, event_type)
);

CREATE TYPE seed000.claim_kind AS ENUM
    ('new_claim', 'replay_success', 'processing_active', 'processing_stale', 'retryable_failure', 'final_failure');
CREATE TYPE seed000.claim AS (
    kind            seed000.claim_kind,
    response_body   jsonb,
    result_ref_type text,
    result_ref_id   uuid,
    attempt_count   integer
);

CREATE FUNCTION seed000.assert_same_request(existing_hash text, incoming_hash text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF existing_hash IS DISTINCT FROM incoming_hash THEN
        RAISE EXCEPTION USING ERRCODE = 'P4002', MESSAGE = 'idempotency key reused with a different request payload',
            DETAIL = format('existing_hash=%s incoming_hash=%s', existing_hash, incoming_hash);
    END IF;
END $$;

CREATE FUNCTION seed000.claim_key(p_scope text, p_key text, p_hash text, p_claimed_by text,
    p_lock_seconds integer DEFAULT 300, p_retention interval DEFAULT interval '24 hours') RETURNS seed000.claim
LANGUAGE plpgsql AS $$
DECLARE
    v_inserted integer := 0;
    v_row      seed000.request%ROWTYPE;
    v_now      timestamptz := clock_timestamp();
BEGIN
    IF p_scope IS NULL OR btrim(p_scope) = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4000', MESSAGE = 'idempotency scope is required';
    END IF;
    IF p_key IS NULL OR btrim(p_key) = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4001', MESSAGE = 'idempotency key is required';
    END IF;
    IF p_hash IS NULL OR btrim(p_hash) = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4003', MESSAGE = 'request hash is required';
    END IF;

    INSERT INTO seed000.request (scope, key, request_hash, status, claimed_by, locked_until, expires_at)
    VALUES (p_scope, p_key, p_hash, 'processing', p_claimed_by, v_now + make_interval(secs => p_lock_seconds),
            v_now + p_retention)
    ON CONFLICT (scope, key) DO NOTHING;
    GET DIAGNOSTICS v_inserted = ROW_COUNT;

    SELECT * INTO STRICT v_row FROM seed000.request AS r WHERE r.scope = p_scope AND r.key = p_key FOR UPDATE;
    PERFORM seed000.assert_same_request(v_row.request_hash, p_hash);

    IF v_inserted = 1 THEN
        RETURN ('new_claim', NULL, NULL, NULL, v_row.attempt_count)::seed000.claim;
    END IF;
    IF v_row.status = 'succeeded' THEN
        RETURN ('replay_success', v_row.response_body, v_row.result_ref_type, v_row.result_ref_id,
                v_row.attempt_count)::seed000.claim;
    END IF;
    IF v_row.status = 'failed_final' THEN
        RETURN ('final_failure',
                jsonb_build_object('failureCode', v_row.failure_code, 'failureMessage', v_row.failure_message),
                v_row.result_ref_type, v_row.result_ref_id, v_row.attempt_count)::seed000.claim;
    END IF;
    IF v_row.status = 'processing' AND v_row.locked_until > v_now THEN
        RETURN ('processing_active', NULL, NULL, NULL, v_row.attempt_count)::seed000.claim;
    END IF;
    UPDATE seed000.request AS r
       SET status = 'processing', attempt_count = r.attempt_count + 1, claimed_by = p_claimed_by, claimed_at = v_now,
           locked_until = v_now + make_interval(secs => p_lock_seconds), updated_at = v_now
     WHERE r.scope = p_scope AND r.key = p_key;
    RETURN (CASE v_row.status WHEN 'processing' THEN 'processing_stale' ELSE 'retryable_failure' END, NULL,
            v_row.result_ref_type, v_row.result_ref_id, v_row.attempt_count + 1)::seed000.claim;
END $$;

CREATE FUNCTION seed000.mark_succeeded(p_scope text, p_key text, p_result_ref_type text, p_result_ref_id uuid,
    p_response_body jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_rows integer;
BEGIN
    UPDATE seed000.request AS r
       SET status = 'succeeded', result_ref_type = p_result_ref_type, result_ref_id = p_result_ref_id,
           response_body = p_response_body, failure_code = NULL, failure_message = NULL, locked_until = NULL,
           updated_at = clock_timestamp()
     WHERE r.scope = p_scope AND r.key = p_key AND r.status = 'processing';
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows <> 1 THEN
        RAISE EXCEPTION USING ERRCODE = 'P4010', MESSAGE = 'failed to mark idempotency key as succeeded',
            DETAIL = format('scope=%s key=%s row_count=%s', p_scope, p_key, v_rows);
    END IF;
END $$;

CREATE FUNCTION seed000.mark_failed(p_scope text, p_key text, p_retryable boolean, p_failure_code text,
    p_failure_message text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE seed000.request AS r
       SET status = CASE WHEN p_retryable THEN 'failed_retryable' ELSE 'failed_final' END::seed000.status,
           failure_code = p_failure_code, failure_message = p_failure_message, locked_until = NULL,
           updated_at = clock_timestamp()
     WHERE r.scope = p_scope AND r.key = p_key AND r.status = 'processing';
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'P4011', MESSAGE = 'failed to mark idempotency key as failed',
            DETAIL = format('scope=%s key=%s', p_scope, p_key);
    END IF;
END $$;

CREATE FUNCTION seed000.create_order_once(p_key text, p_hash text, p_request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    v_claim    seed000.claim;
    v_order    seed000.customer_order%ROWTYPE;
    v_response jsonb;
BEGIN
    v_claim := seed000.claim_key(p_scope => 'create_order', p_key => p_key, p_hash => p_hash, p_claimed_by => 'bench',
                                 p_lock_seconds => 300, p_retention => interval '7 days');
    IF v_claim.kind = 'replay_success' THEN
        RETURN v_claim.response_body;
    END IF;
    IF v_claim.kind = 'processing_active' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4029', MESSAGE = 'idempotent command is already processing';
    END IF;
    IF v_claim.kind = 'final_failure' THEN
        RAISE EXCEPTION USING ERRCODE = 'P4030', MESSAGE = 'idempotent command previously failed permanently',
            DETAIL = v_claim.response_body::text;
    END IF;

    INSERT INTO seed000.customer_order (customer, cart, total)
    VALUES (p_request ->> 'customer', p_request ->> 'cart', (p_request ->> 'total')::numeric)
    ON CONFLICT (customer, cart) DO UPDATE SET customer = EXCLUDED.customer
    RETURNING * INTO v_order;
    v_response := jsonb_build_object('orderId', v_order.order_id, 'status', v_order.status,
                                     'totalAmount', v_order.total);

    INSERT INTO seed000.outbox_event (event_type, aggregate_type, aggregate_id, scope, key, payload)
    VALUES ('order.created', 'customer_order', v_order.order_id, 'create_order', p_key,
            jsonb_build_object('orderId', v_order.order_id, 'customerId', v_order.customer,
                               'externalCartId', v_order.cart, 'totalAmount', v_order.total))
    ON CONFLICT (scope, key, event_type) DO NOTHING;

    PERFORM seed000.mark_succeeded(p_scope => 'create_order', p_key => p_key, p_result_ref_type => 'customer_order',
                                   p_result_ref_id => v_order.order_id, p_response_body => v_response);
    RETURN v_response;
EXCEPTION
    WHEN serialization_failure OR deadlock_detected THEN
        PERFORM seed000.mark_failed('create_order', p_key, true, SQLSTATE, SQLERRM);
        RAISE;
END $$;

GRANT USAGE ON SCHEMA seed000 TO once_app;
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA seed000 TO once_app;
