// SPDX-License-Identifier: PostgreSQL
// The contract's calls: their SQL, what goes in and what comes out. Decides nothing.
'use strict';

const {bytes} = require('./fingerprint');
const reasons = require('./reasons');

const OUTCOME = "response_status, encode(response_body, 'hex'), response_headers::text, result_type, result_id, error_code, error_message";

const jsonOf = (value) => (value === undefined || value === null ? null : JSON.stringify(value));
const text = (value) => (value === undefined || value === null ? null : String(value));

/** A name as text. Ids are often numbers: an integer is written out; of another number, or one above 2^53, it is not certain which id was meant. */
function nameOf(value, parameter) {
  if (value === undefined || value === null || typeof value === 'string') return value ?? null;
  if (typeof value === 'bigint' || Number.isSafeInteger(value)) return String(value);
  throw new TypeError(`pgonce: ${parameter} is a string or an integer, and this is neither`);
}

/** Numbers the parameters of one statement. */
class Parameters {
  constructor() {
    this.values = [];
  }

  add(value, type) {
    this.values.push(value);
    return `$${this.values.length}::${type}`;
  }
}

/** The fingerprint of a request, computed by the server in the call itself: bytes of a string or Buffer, HTTP of {http}, else JSON. */
function fingerprint(parameters, request, tenant) {
  const of = parameters.add(tenant, 'text');
  if (typeof request === 'string') return `once.fingerprint(${parameters.add(request, 'text')}, ${of})`;
  if (bytes(request)) return `once.fingerprint(${parameters.add(bytes(request), 'bytea')}, ${of})`;
  if (request?.http) {
    const {method, target, contentType = '', body = '', canonicalJson = false} = request.http;
    return `once.request_fingerprint(${parameters.add(method, 'text')}, ${parameters.add(target, 'text')}, ${parameters.add(contentType, 'text')}, ${
      bytes(body) ? parameters.add(bytes(body), 'bytea') : parameters.add(body, 'text')}, ${of}, ${parameters.add(String(canonicalJson), 'boolean')})`;
  }
  const json = JSON.stringify(request);
  if (json === undefined) throw new TypeError('pgonce: a request is a string, bytes, {http: ...}, or a value of JSON');
  return `once.fingerprint(${parameters.add(json, 'jsonb')}, ${of})`;
}

const ANSWER = ['status', 'headers', 'body', 'resultType', 'resultId'];

/** Checked: what an effect returns by mistake must not become an answer without a body. */
function checkAnswer(answer) {
  if (answer === undefined || answer === null) return {};
  const strange = typeof answer === 'object' && !Array.isArray(answer) && !bytes(answer) ? Object.keys(answer).find((name) => !ANSWER.includes(name)) : typeof answer;
  if (strange !== undefined) throw new TypeError(`pgonce: an answer is {${ANSWER.join(', ')}}: put the value in body`);
  nameOf(answer.resultType, 'resultType');
  nameOf(answer.resultId, 'resultId');
  return answer;
}

/** [as text, as bytes]: a string never becomes bytes on its way. */
function bodyOf(body) {
  if (body === undefined || body === null) return [null, null];
  if (bytes(body)) return [null, bytes(body)];
  return [typeof body === 'string' ? body : JSON.stringify(body), null];
}

function outcome(parameters, answer) {
  const [asText, asBytes] = bodyOf(answer.body);
  const body = asBytes ? `response_body => ${parameters.add(asBytes, 'bytea')}` : `response_text => ${parameters.add(asText, 'text')}`;
  return `response_status => ${parameters.add(text(answer.status), 'integer')}, ${body}, response_headers => ${
    parameters.add(jsonOf(answer.headers), 'jsonb')}`;
}

function result(parameters, answer) {
  return `result_type => ${parameters.add(nameOf(answer.resultType, 'resultType'), 'text')}, result_id => ${parameters.add(nameOf(answer.resultId, 'resultId'), 'text')}`;
}

/** The columns of OUTCOME, as an answer. */
function answerOf([status, hex, headers, resultType, resultId, errorCode, errorMessage]) {
  return {
    status: status === null ? null : Number(status), headers: headers === null ? null : JSON.parse(headers),
    body: hex === null ? null : Buffer.from(hex, 'hex'), resultType, resultId, errorCode, errorMessage,
  };
}

function begin(isolation) {
  const level = (isolation ?? '').toUpperCase();
  if (!['', 'READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE'].includes(level)) throw new TypeError('pgonce: no such isolation level');
  return [level ? `BEGIN ISOLATION LEVEL ${level}` : 'BEGIN'];
}

// The row in one value, which costs PostgreSQL less than a column for each.
const start = (print) => `SELECT encode(record_send(once.try_start($1::text, $2::text, ${print}, $3::text, $5::text)), 'hex')`;
// The fingerprint of what is known; of what stands after the salt, which comes back; of what the database has to look at.
const START_KNOWN = start('$4::bytea');
const START_SALTED = `${start('sha256(s.salt || $4::bytea)')}, encode(s.salt, 'hex') FROM (SELECT once.salt($3::text) AS salt OFFSET 0) AS s`;

/** known: the fingerprint, where the salt is known. hashed: what is hashed after the salt; null where the database has to do that. */
function tryStart({scope, key, tenant, request, traceparent}, hashed, known) {
  if (hashed) return [known ? START_KNOWN : START_SALTED, [scope, key, tenant, known ?? hashed, text(traceparent)]];
  const p = new Parameters();
  const print = fingerprint(p, request, tenant);
  return [`SELECT encode(record_send(once.try_start(${p.add(scope, 'text')}, ${p.add(key, 'text')}, f.print, ${p.add(tenant, 'text')}, ${
    p.add(text(traceparent), 'text')})), 'hex'), encode(f.print, 'hex') FROM ${print} AS f(print)`, p.values];
}

/** The values of a row as record_send writes it: their number; then of each its type, its length, which is -1 of NULL, and its bytes. */
function valuesOf(row) {
  const values = [];
  for (let at = 4; values.length < row.readInt32BE(0);) {
    const length = row.readInt32BE(at + 4);
    at += 8;
    values.push(length < 0 ? null : row.subarray(at, at + length));
    at += Math.max(length, 0);
  }
  return values;
}

const toText = (value) => value && value.toString();

/** computed: the salt, or the fingerprint, as the database has told it. */
function started([row, computed]) {
  const [verdict, , status, body, headers, resultType, resultId, errorCode, errorMessage, , traceparent] = valuesOf(Buffer.from(row, 'hex'));
  const answer = {
    status: status && status.readInt32BE(0), headers: headers && JSON.parse(headers.subarray(1)), body, // before a jsonb stands its version
    resultType: toText(resultType), resultId: toText(resultId), errorCode: toText(errorCode), errorMessage: toText(errorMessage),
  };
  return {verdict: toText(verdict), traceparent: toText(traceparent), answer, computed: computed ? Buffer.from(computed, 'hex') : null};
}

const FINISH = (body, failed) => `SELECT once.finish($1::text, $2::text, $3::bytea, response_status => $4::integer, ${body}, response_headers => $6::jsonb,
  result_type => $7::text, result_id => $8::text, tenant => $9::text, traceparent => $10::text${failed}) IS NULL`;
const FAILED = ", state => 'failed_final', error_code => $11::text, error_message => $12::text";
const [AS_TEXT, AS_BYTES] = ['response_text => $5::text', 'response_body => $5::bytea'];
const FINISHES = [FINISH(AS_TEXT, ''), FINISH(AS_BYTES, ''), FINISH(AS_TEXT, FAILED), FINISH(AS_BYTES, FAILED)];

/** print: the fingerprint that it was started with. Or fence: of a claim that a gateway in front has made. failed: {code, message} of an effect that failed for good. */
function finish(intent, answer, failed) {
  const {scope, key, tenant, print, traceparent, fence} = intent;
  if (fence !== undefined) return failed && !answer.resultType ? fail(intent, fence, false, {...failed, answer}) : complete(intent, fence, answer);
  const [asText, asBytes] = bodyOf(answer.body);
  const values = [scope, key, print, text(answer.status), asBytes ?? asText, jsonOf(answer.headers), nameOf(answer.resultType, 'resultType'),
    nameOf(answer.resultId, 'resultId'), tenant, text(traceparent)];
  if (failed) values.push(text(failed.code), text(failed.message));
  return [FINISHES[(asBytes ? 1 : 0) + (failed ? 2 : 0)], values];
}

function claim({scope, key, tenant, request, traceparent}, {owner, leaseMs, retentionMs, takeover}) {
  const p = new Parameters();
  const print = fingerprint(p, request, tenant);
  return [`SELECT verdict, traceparent, fence, floor(extract(epoch FROM lease_until - clock_timestamp()) * 1000)::text, ${OUTCOME} FROM once.claim(${
    p.add(scope, 'text')}, ${p.add(key, 'text')}, ${print}, ${p.add(text(owner), 'text')}, ${p.add(text(leaseMs), 'float8')} * interval '1 millisecond', ${
    p.add(text(retentionMs), 'float8')} * interval '1 millisecond', tenant => ${p.add(tenant, 'text')}, traceparent => ${
    p.add(text(traceparent), 'text')}, takeover => ${p.add(text(takeover), 'boolean')})`, p.values];
}

const claimed = ([verdict, traceparent, fence, leaseMs, ...rest]) =>
  ({verdict, traceparent, fence: fence === null ? null : Number(fence), leaseMs: leaseMs === null ? null : Number(leaseMs), answer: answerOf(rest)});

/** The status of an answer that left a doubt: try_start does not tell it. */
const peekStatus = ({scope, key, tenant}) => ['SELECT response_status FROM once.peek($1::text, $2::text, $3::text)', [scope, key, tenant]];

/** Whose it is, after a claim whose answer was lost. */
function peek({scope, key, tenant}) {
  return [`SELECT owner, state, fence, attempts, floor(extract(epoch FROM lease_until - clock_timestamp()) * 1000)::text FROM once.peek($1::text, $2::text, $3::text)`, [scope, key, tenant]];
}

const peeked = ([owner, state, fence, attempts, leaseMs]) => ({owner, state, fence: Number(fence), attempts: Number(attempts), leaseMs: Number(leaseMs)});

function complete({scope, key, tenant}, fence, answer) {
  const p = new Parameters();
  return [`SELECT once.complete(${p.add(scope, 'text')}, ${p.add(key, 'text')}, ${p.add(text(fence), 'integer')}, ${outcome(p, answer)}, ${result(p, answer)}, tenant => ${
    p.add(tenant, 'text')})`, p.values];
}

/** retryable null: the outcome is unknown. */
function fail({scope, key, tenant}, fence, retryable, {code, message, answer = {}} = {}) {
  const p = new Parameters();
  return [`SELECT once.fail(${p.add(scope, 'text')}, ${p.add(key, 'text')}, ${p.add(text(fence), 'integer')}, ${p.add(text(retryable), 'boolean')}, ${
    p.add(text(code), 'text')}, ${p.add(text(message), 'text')}, ${outcome(p, answer)}, tenant => ${p.add(tenant, 'text')})`, p.values];
}

/**
 * Nobody knows what happened elsewhere. In the transaction that has started it, after ROLLBACK TO; or after that, where another attempt may
 * have claimed it meanwhile: its claim is its own.
 */
function doubt({scope, key, tenant, print: known, traceparent}, answer, {code, message} = reasons.UNCLEAR) {
  const p = new Parameters();
  const print = p.add(known, 'bytea');
  const [s, k, t] = [p.add(scope, 'text'), p.add(key, 'text'), p.add(tenant, 'text')];
  return [`SELECT CASE WHEN c.verdict IN ('new_claim', 'retryable_failure', 'processing_stale') THEN once.fail(${s}, ${k}, c.fence, NULL, ${p.add(code, 'text')}, ${p.add(message, 'text')}, ${
    outcome(p, answer)}, tenant => ${t}) END FROM once.claim(${s}, ${k}, ${print}, tenant => ${t}, traceparent => ${p.add(text(traceparent), 'text')}) AS c`, p.values];
}

const renew = ({scope, key, tenant}, fence, leaseMs) =>
  ["SELECT once.renew($1::text, $2::text, $3::integer, $4::float8 * interval '1 millisecond', $5::text)", [scope, key, text(fence), text(leaseMs), tenant]];

const release = ({scope, key, tenant}, fence) => ['SELECT once.release($1::text, $2::text, $3::integer, $4::text)', [scope, key, text(fence), tenant]];

const UUID_V7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** The key that once.receive gives the intent of a message: its id is only a name, and has no birthday. */
const keyOfMessage = (id) => (UUID_V7.test(id) ? `pgonce:id:${id}` : id);

function receive(consumer, message, payload, {tenant, traceparent}) {
  const p = new Parameters();
  const print = fingerprint(p, payload, tenant);
  return [`SELECT once.receive(${p.add(consumer, 'text')}, ${p.add(message, 'text')}, ${print}, ${p.add(tenant, 'text')}, ${p.add(text(traceparent), 'text')})`, p.values];
}

/** A Date; an invalid one is a mistake, and no time in the past. */
function timeOf(notBefore) {
  if (!(notBefore instanceof Date) || Number.isNaN(notBefore.getTime())) {
    throw new TypeError('notBefore must be a valid Date');
  }
  return notBefore.toISOString();
}

function emit(topic, payload, {aggregateType, aggregateId, eventType, scope, key, headers, tenant, traceparent, notBefore}) {
  const [name, when] = notBefore === undefined ? ['emit(', []] : ['emit_later($11::timestamptz, ', [timeOf(notBefore)]];
  return [`SELECT once.${name}$1::text, $2::jsonb, $3::text, $4::text, $5::text, $6::text, $7::text, $8::jsonb, $9::text, $10::text)`,
    [nameOf(topic, 'topic'), JSON.stringify(payload) ?? null, nameOf(aggregateType, 'aggregateType'), nameOf(aggregateId, 'aggregateId'), nameOf(eventType, 'eventType'),
      nameOf(scope, 'scope'), nameOf(key, 'key'), headers === undefined ? null : JSON.stringify(headers), nameOf(tenant, 'tenant'), text(traceparent), ...when]];
}

/** Bytes as they are: a string would be encoded by guess. Delayed events are JSON's. */
function emitBytes(topic, payload, contentType, {aggregateType, aggregateId, eventType, scope, key, headers, tenant, traceparent, notBefore}) {
  if (!bytes(payload)) throw new TypeError('pgonce: the payload of emitBytes is a Buffer or another Uint8Array');
  if (typeof contentType !== 'string') throw new TypeError('pgonce: contentType is a string, such as application/x-protobuf');
  if (notBefore !== undefined) throw new TypeError('pgonce: notBefore is for emit: an event of bytes is published at once');
  return ['SELECT once.emit_bytes($1::text, $2::bytea, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::jsonb, $10::text, $11::text)',
    [nameOf(topic, 'topic'), bytes(payload), contentType, nameOf(aggregateType, 'aggregateType'), nameOf(aggregateId, 'aggregateId'), nameOf(eventType, 'eventType'),
      nameOf(scope, 'scope'), nameOf(key, 'key'), headers === undefined ? null : JSON.stringify(headers), nameOf(tenant, 'tenant'), text(traceparent)]];
}

const lock = (resource, waitMs) => ["SELECT once.lock($1::text, $2::float8 * interval '1 millisecond')", [nameOf(resource, 'resource'), String(waitMs)]];

module.exports = {
  begin, tryStart, started, finish, claim, claimed, peek, peekStatus, peeked, complete, fail, doubt, renew, release, receive, emit, emitBytes, lock, bodyOf, checkAnswer, keyOfMessage, nameOf,
  SAVEPOINT: ['SAVEPOINT once_effect'], ROLLBACK_TO: ['ROLLBACK TO SAVEPOINT once_effect'], COMMIT: ['COMMIT'], ROLLBACK: ['ROLLBACK'],
  RESET_ROLE: ['RESET ROLE'],
  SAVEPOINT_STORE: ['SAVEPOINT once_store'], ROLLBACK_TO_STORE: ['ROLLBACK TO SAVEPOINT once_store'],
};
