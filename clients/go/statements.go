// SPDX-License-Identifier: PostgreSQL

package once

// The SQL that the client sends. A statement with a request has a text for each kind of request, whose
// parameters come first.
var (
	// spec: statements
	// Start an intent whose fingerprint only the database can compute. OFFSET 0 keeps the planner from computing it twice.
	// Parameters: scope, key, traceparent.
	sqlStart = map[string]string{
		"json": "SELECT f.print, record_send(once.try_start($3::text, $4::text, f.print, $2::text, $5::text)) FROM (SELECT " +
			"once.fingerprint($1::text::jsonb, $2::text) AS print OFFSET 0) AS f",
		"text": "SELECT f.print, record_send(once.try_start($3::text, $4::text, f.print, $2::text, $5::text)) FROM (SELECT once.fingerprint($1::text, " +
			"$2::text) AS print OFFSET 0) AS f",
		"bytes": "SELECT f.print, record_send(once.try_start($3::text, $4::text, f.print, $2::text, $5::text)) FROM (SELECT once.fingerprint($1::bytea, " +
			"$2::text) AS print OFFSET 0) AS f",
		"http": "SELECT f.print, record_send(once.try_start($7::text, $8::text, f.print, $2::text, $9::text)) FROM (SELECT " +
			"once.request_fingerprint($3::text, $4::text, $5::text, $1::bytea, $2::text, $6::boolean) AS print OFFSET 0) AS f",
	}

	// The same with a fingerprint that the client has computed.
	// Parameters: scope, key, fingerprint, tenant, traceparent.
	sqlStartKnown = "SELECT $3::bytea, record_send(once.try_start($1::text, $2::text, $3::bytea, $4::text, $5::text))"

	// The same before the client knows the tenant's salt, which comes back. hashed: the bytes that are hashed after the salt.
	// Parameters: scope, key, hashed, tenant, traceparent.
	sqlStartSalted = "SELECT f.salt, record_send(once.try_start($1::text, $2::text, sha256(f.salt || $3::bytea), $4::text, $5::text)) FROM (SELECT " +
		"once.salt($4::text) AS salt OFFSET 0) AS f"

	// Store the outcome of an intent in the transaction that started it.
	// Parameters: scope, key, fingerprint, status, text, json, body, headers, result_type, result_id, state, error_code, error_message, tenant,
	// traceparent.
	sqlFinish = "SELECT once.finish($1::text, $2::text, $3::bytea, $4::integer, $5::text, $6::text::jsonb, $7::bytea, $8::text::jsonb, $9::text, " +
		"$10::text, $11::text, $12::text, $13::text, $14::text, $15::text) IS NULL"

	// Claim an intent for work outside of the database.
	// Parameters: scope, key, owner, lease_s, retention_s, traceparent, takeover.
	sqlClaim = map[string]string{
		"json": "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, s.result_type, " +
			"s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS " +
			"lease_left_s FROM (SELECT once.fingerprint($1::text::jsonb, $2::text) AS print OFFSET 0) AS f, LATERAL once.claim($3::text, $4::text, " +
			"f.print, $5::text, make_interval(secs => $6::double precision), make_interval(secs => $7::double precision), $2::text, $8::text, " +
			"$9::boolean) AS s",
		"text": "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, s.result_type, " +
			"s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS " +
			"lease_left_s FROM (SELECT once.fingerprint($1::text, $2::text) AS print OFFSET 0) AS f, LATERAL once.claim($3::text, $4::text, " +
			"f.print, $5::text, make_interval(secs => $6::double precision), make_interval(secs => $7::double precision), $2::text, $8::text, " +
			"$9::boolean) AS s",
		"bytes": "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, s.result_type, " +
			"s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS " +
			"lease_left_s FROM (SELECT once.fingerprint($1::bytea, $2::text) AS print OFFSET 0) AS f, LATERAL once.claim($3::text, $4::text, " +
			"f.print, $5::text, make_interval(secs => $6::double precision), make_interval(secs => $7::double precision), $2::text, $8::text, " +
			"$9::boolean) AS s",
		"http": "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, s.result_type, " +
			"s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS " +
			"lease_left_s FROM (SELECT once.request_fingerprint($3::text, $4::text, $5::text, $1::bytea, $2::text, $6::boolean) AS print OFFSET 0) " +
			"AS f, LATERAL once.claim($7::text, $8::text, f.print, $9::text, make_interval(secs => $10::double precision), make_interval(secs => " +
			"$11::double precision), $2::text, $12::text, $13::boolean) AS s",
	}

	// Store the answer of a claim.
	// Parameters: scope, key, fence, status, text, json, body, headers, result_type, result_id, tenant.
	sqlComplete = "SELECT once.complete($1::text, $2::text, $3::integer, $4::integer, $5::text, $6::text::jsonb, $7::bytea, $8::text::jsonb, $9::text, " +
		"$10::text, $11::text)"

	// Store the failure of a claim. retryable NULL: the outcome is unknown.
	// Parameters: scope, key, fence, retryable, error_code, error_message, status, text, json, body, headers, tenant.
	sqlFail = "SELECT once.fail($1::text, $2::text, $3::integer, $4::boolean, $5::text, $6::text, $7::integer, $8::text, $9::text::jsonb, $10::bytea," +
		" $11::text::jsonb, $12::text)"

	// Put an intent in doubt: claim it, and report an unknown outcome at once. NULL: another attempt has claimed it or has finished, and its claim
	// is left alone.
	// Parameters: scope, key, tenant, fingerprint, traceparent, error_code, error_message, status.
	sqlDoubt = "SELECT CASE WHEN c.verdict IN ('new_claim', 'processing_stale', 'retryable_failure') THEN once.fail(c.scope, c.key, c.fence, NULL, " +
		"c.error_code, c.error_message, response_status => c.status, tenant => c.tenant) END FROM (SELECT i.*, s.verdict, s.fence FROM (SELECT " +
		"$1::text AS scope, $2::text AS key, $3::text AS tenant, $4::bytea AS print, $5::text AS traceparent, $6::text AS error_code, $7::text " +
		"AS error_message, $8::integer AS status) AS i, LATERAL once.claim(i.scope, i.key, i.print, tenant => i.tenant, traceparent => " +
		"i.traceparent) AS s) AS c"

	// Renew the lease of a claim.
	// Parameters: scope, key, fence, lease_s, tenant.
	sqlRenew = "SELECT once.renew($1::text, $2::text, $3::integer, make_interval(secs => $4::double precision), $5::text)"

	// Give back a claim whose work did not begin.
	// Parameters: scope, key, fence, tenant.
	sqlRelease = "SELECT once.release($1::text, $2::text, $3::integer, $4::text)"

	// Read an intent: who holds it, or what was stored.
	// Parameters: scope, key, tenant.
	sqlPeek = "SELECT s.verdict, s.fence, s.state, s.response_status, s.response_headers::text AS response_headers, s.response_body, s.result_type, " +
		"s.result_id, s.error_code, s.error_message, s.traceparent, extract(epoch FROM s.lease_until - clock_timestamp())::double precision AS " +
		"lease_left_s, s.owner, s.attempts FROM once.peek($1::text, $2::text, $3::text) AS s"

	// Read only the stored status: that of the answer that left a doubt, which once.try_start does not return.
	// Parameters: scope, key, tenant.
	sqlPeekStatus = "SELECT s.response_status FROM once.peek($1::text, $2::text, $3::text) AS s"

	// Publish an event with the transaction.
	// Parameters: topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent.
	sqlEmit = "SELECT once.emit(topic => $1::text, payload => $2::text::jsonb, aggregate_type => $3::text, aggregate_id => $4::text, event_type => " +
		"$5::text, scope => $6::text, key => $7::text, headers => $8::text::jsonb, tenant => $9::text, traceparent => $10::text)::text AS id"

	// The same at a later time.
	// Parameters: topic, payload, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent, not_before.
	sqlEmitLater = "SELECT once.emit_later(topic => $1::text, payload => $2::text::jsonb, aggregate_type => $3::text, aggregate_id => $4::text, event_type" +
		" => $5::text, scope => $6::text, key => $7::text, headers => $8::text::jsonb, tenant => $9::text, traceparent => $10::text, not_before" +
		" => $11::text::timestamptz)::text AS id"

	// Publish an event whose payload is bytes.
	// Parameters: topic, bytes, aggregate_type, aggregate_id, event_type, scope, key, headers, tenant, traceparent, content_type.
	sqlEmitBytes = "SELECT once.emit_bytes(topic => $1::text, payload => $2::bytea, aggregate_type => $3::text, aggregate_id => $4::text, event_type => " +
		"$5::text, scope => $6::text, key => $7::text, headers => $8::text::jsonb, tenant => $9::text, traceparent => $10::text, content_type " +
		"=> $11::text)::text AS id"

	// Receive a message: process, or duplicate.
	// Parameters: consumer, message, traceparent.
	sqlReceive = map[string]string{
		"json": "SELECT s.verdict FROM (SELECT once.fingerprint($1::text::jsonb, $2::text) AS print OFFSET 0) AS f, LATERAL once.receive($3::text, " +
			"$4::text, f.print, $2::text, $5::text) AS s(verdict)",
		"text": "SELECT s.verdict FROM (SELECT once.fingerprint($1::text, $2::text) AS print OFFSET 0) AS f, LATERAL once.receive($3::text, $4::text, " +
			"f.print, $2::text, $5::text) AS s(verdict)",
		"bytes": "SELECT s.verdict FROM (SELECT once.fingerprint($1::bytea, $2::text) AS print OFFSET 0) AS f, LATERAL once.receive($3::text, $4::text, " +
			"f.print, $2::text, $5::text) AS s(verdict)",
		"http": "SELECT s.verdict FROM (SELECT once.request_fingerprint($3::text, $4::text, $5::text, $1::bytea, $2::text, $6::boolean) AS print OFFSET" +
			" 0) AS f, LATERAL once.receive($7::text, $8::text, f.print, $2::text, $9::text) AS s(verdict)",
	}

	// Take a lock on a name until the transaction ends; wait at most this long.
	// Parameters: resource, wait_s.
	sqlLock = "SELECT once.lock($1::text, make_interval(secs => $2::double precision))"
	// end of spec
)
