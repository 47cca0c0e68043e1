// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/** The SQL that the client sends. PRINT_ computes the fingerprint of a request, and takes the place of %s in a statement. */
final class Statements {
    // spec: statements
    static final String PRINT_JSON = "once.fingerprint(?::text::jsonb, ?::text)";

    static final String PRINT_TEXT = "once.fingerprint(?::text, ?::text)";

    static final String PRINT_BYTES = "once.fingerprint(?::bytea, ?::text)";

    static final String PRINT_HTTP = "once.request_fingerprint(?::text, ?::text, ?::text, ?::bytea, ?::text, ?::boolean)";

    // Start an intent whose fingerprint only the database can compute. OFFSET 0 keeps the planner from computing it twice.
    // Parameters: scope, key, traceparent.
    static final String START = "SELECT f.print, s.* FROM (SELECT %s AS print OFFSET 0) AS f, LATERAL once.start(?::text, ?::text, f.print, ?::text, ?::text)"
        + " AS s";

    // The same with a fingerprint that the client has computed.
    // Parameters: scope, key, fingerprint, tenant, traceparent.
    static final String START_KNOWN = "SELECT s.* FROM once.start(?::text, ?::text, ?::bytea, ?::text, ?::text) AS s";

    // The same before the client knows the tenant's salt, which comes back. hashed: the bytes that are hashed after the salt.
    // Parameters: scope, key, hashed, tenant, traceparent.
    static final String START_SALTED = "SELECT f.salt, s.* FROM (SELECT once.salt(?::text) AS salt OFFSET 0) AS f, LATERAL once.start(?::text, ?::text, "
        + "sha256(f.salt || ?::bytea), ?::text, ?::text) AS s";

    // Store the outcome of an intent in the transaction that started it.
    // Parameters: scope, key, fingerprint, status, text, json, body, headers, result_type, result_id, state, error_code, error_message,
    // tenant, traceparent.
    static final String FINISH = "SELECT once.finish(?::text, ?::text, ?::bytea, ?::integer, ?::text, ?::text::jsonb, ?::bytea, ?::text::jsonb, ?::text, "
        + "?::text, ?::text, ?::text, ?::text, ?::text, ?::text)";

    // Claim an intent for work outside of the database.
    // Parameters: scope, key, owner, lease_s, retention_s, traceparent, takeover.
    static final String CLAIM = "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, "
        + "s.result_type, s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - "
        + "clock_timestamp())::double precision AS lease_left_s FROM (SELECT %s AS print OFFSET 0) AS f, LATERAL once.claim(?::text, "
        + "?::text, f.print, ?::text, make_interval(secs => ?::double precision), make_interval(secs => ?::double precision), ?::text, "
        + "?::text, ?::boolean) AS s";

    // Store the answer of a claim.
    // Parameters: scope, key, fence, status, text, json, body, headers, result_type, result_id, tenant.
    static final String COMPLETE = "SELECT once.complete(?::text, ?::text, ?::integer, ?::integer, ?::text, ?::text::jsonb, ?::bytea, ?::text::jsonb, ?::text, "
        + "?::text, ?::text)";

    // Store the failure of a claim. retryable NULL: the outcome is unknown.
    // Parameters: scope, key, fence, retryable, error_code, error_message, status, text, json, body, headers, tenant.
    static final String FAIL = "SELECT once.fail(?::text, ?::text, ?::integer, ?::boolean, ?::text, ?::text, ?::integer, ?::text, ?::text::jsonb, ?::bytea, "
        + "?::text::jsonb, ?::text)";

    // Put an intent in doubt: claim it, and report an unknown outcome at once. NULL: another attempt has claimed it or has finished, and
    // its claim is left alone.
    // Parameters: scope, key, tenant, fingerprint, traceparent, error_code, error_message, status.
    static final String DOUBT = "SELECT CASE WHEN c.verdict IN ('new_claim', 'processing_stale', 'retryable_failure') THEN once.fail(c.scope, c.key, c.fence,"
        + " NULL, c.error_code, c.error_message, response_status => c.status, tenant => c.tenant) END FROM (SELECT i.*, s.verdict, "
        + "s.fence FROM (SELECT ?::text AS scope, ?::text AS key, ?::text AS tenant, ?::bytea AS print, ?::text AS traceparent, ?::text"
        + " AS error_code, ?::text AS error_message, ?::integer AS status) AS i, LATERAL once.claim(i.scope, i.key, i.print, tenant => "
        + "i.tenant, traceparent => i.traceparent) AS s) AS c";

    // Renew the lease of a claim.
    // Parameters: scope, key, fence, lease_s, tenant.
    static final String RENEW = "SELECT once.renew(?::text, ?::text, ?::integer, make_interval(secs => ?::double precision), ?::text)";

    // Give back a claim whose work did not begin.
    // Parameters: scope, key, fence, tenant.
    static final String RELEASE = "SELECT once.release(?::text, ?::text, ?::integer, ?::text)";

    // Read an intent: who holds it, or what was stored.
    // Parameters: scope, key, tenant.
    static final String PEEK = "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, "
        + "s.result_type, s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - "
        + "clock_timestamp())::double precision AS lease_left_s, s.owner, s.attempts FROM once.peek(?::text, ?::text, ?::text) AS s";

    // Publish an event with the transaction.
    // Parameters: topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent.
    static final String EMIT = "SELECT once.emit(topic => ?::text, payload => ?::text::jsonb, aggregate_type => ?::text, aggregate_id => ?::text, event_type"
        + " => ?::text, scope => ?::text, key => ?::text, headers => ?::text::jsonb, tenant => ?::text, traceparent => ?::text)::text "
        + "AS id";

    // The same at a later time.
    // Parameters: topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent, not_before.
    static final String EMIT_LATER = "SELECT once.emit_later(topic => ?::text, payload => ?::text::jsonb, aggregate_type => ?::text, aggregate_id => ?::text, "
        + "event_type => ?::text, scope => ?::text, key => ?::text, headers => ?::text::jsonb, tenant => ?::text, traceparent => "
        + "?::text, not_before => ?::text::timestamptz)::text AS id";

    // Publish an event whose payload is bytes.
    // Parameters: topic, bytes, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent, content_type.
    static final String EMIT_BYTES = "SELECT once.emit_bytes(topic => ?::text, payload => ?::bytea, aggregate_type => ?::text, aggregate_id => ?::text, event_type"
        + " => ?::text, scope => ?::text, key => ?::text, headers => ?::text::jsonb, tenant => ?::text, traceparent => ?::text, "
        + "content_type => ?::text)::text AS id";

    // Receive a message: process, or duplicate.
    // Parameters: consumer, message, traceparent.
    static final String RECEIVE = "SELECT s.verdict FROM (SELECT %s AS print OFFSET 0) AS f, LATERAL once.receive(?::text, ?::text, f.print, ?::text, ?::text) "
        + "AS s(verdict)";

    // Take a lock on a name until the transaction ends; wait at most this long.
    // Parameters: resource, wait_s.
    static final String LOCK = "SELECT once.lock(?::text, make_interval(secs => ?::double precision))";

    // Take it only if it is free.
    // Parameters: resource.
    static final String TRY_LOCK = "SELECT once.try_lock(?::text)";
    // end of spec

    private Statements() {
    }
}
