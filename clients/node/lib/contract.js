// SPDX-License-Identifier: PostgreSQL
// The contract's calls: the parameters of each statement, and how its row is read. It decides nothing.
'use strict';

const {bytes} = require('./fingerprint');
const reasons = require('./reasons');
const sql = require('./statements');

const jsonOf = (value) => (value === undefined || value === null ? null : JSON.stringify(value));
const text = (value) => (value === undefined || value === null ? null : String(value));

/** A name as text. Ids are often numbers: an integer is written out; of another number, or one above 2^53, it is not certain which id was meant. */
function nameOf(value, parameter) {
  if (value === undefined || value === null || typeof value === 'string') return value ?? null;
  if (typeof value === 'bigint' || Number.isSafeInteger(value)) return String(value);
  throw new TypeError(`pgonce: ${parameter} is a string or an integer, and this is neither`);
}

/** [kind, parameters] of the request's fingerprint, which the server computes: bytes of a string or Buffer, HTTP of {http}, else JSON. */
function fingerprint(request, tenant) {
  if (typeof request === 'string') return ['text', [request, tenant]];
  if (bytes(request)) return ['bytes', [bytes(request), tenant]];
  if (request?.http) {
    const {method, target, contentType = '', body = '', canonicalJson = false} = request.http;
    return ['http', [bytes(body) ?? Buffer.from(String(body ?? '')), tenant, method, target, contentType, String(canonicalJson)]];
  }
  const json = JSON.stringify(request);
  if (json === undefined) throw new TypeError('pgonce: a request is a string, bytes, {http: ...}, or a value of JSON');
  return ['json', [json, tenant]];
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

/** The parameters status, text, json, body, headers. JSON travels as text, and is stored as it was written. */
function outcome(answer) {
  const [asText, asBytes] = bodyOf(answer.body);
  return [text(answer.status), asText, null, asBytes, jsonOf(answer.headers)];
}

const result = (answer) => [nameOf(answer.resultType, 'resultType'), nameOf(answer.resultId, 'resultId')];

/** The columns of a stored outcome, as an answer. */
function answerOf([status, headers, hex, resultType, resultId, errorCode, errorMessage]) {
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

/** hashed: the bytes that are hashed after the salt; null: the database has to compute the fingerprint. known: the fingerprint, if the salt is known. */
function tryStart({scope, key, tenant, request, traceparent}, hashed, known) {
  if (hashed) return [known ? sql.startKnown : sql.startSalted, [scope, key, known ?? hashed, tenant, text(traceparent)]];
  const [kind, parameters] = fingerprint(request, tenant);
  return [sql.start[kind], [...parameters, scope, key, text(traceparent)]];
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

/** print: the fingerprint that it was started with. Or fence: of a claim that a gateway in front has made. failed: {code, message} of an effect that failed for good. */
function finish(intent, answer, failed) {
  const {scope, key, tenant, print, traceparent, fence} = intent;
  if (fence !== undefined) return failed && !answer.resultType ? fail(intent, fence, false, {...failed, answer}) : complete(intent, fence, answer);
  return [sql.finish, [scope, key, print, ...outcome(answer), ...result(answer), failed ? 'failed_final' : 'succeeded', text(failed?.code), text(failed?.message), tenant,
    text(traceparent)]];
}

const seconds = (ms) => (ms === undefined || ms === null ? null : String(ms / 1000));
const millisecondsOf = (written) => (written === null ? null : Math.floor(Number(written) * 1000));

function claim({scope, key, tenant, request, traceparent}, {owner, leaseMs, retentionMs, takeover}) {
  const [kind, parameters] = fingerprint(request, tenant);
  return [sql.claim[kind], [...parameters, scope, key, text(owner), seconds(leaseMs), seconds(retentionMs), text(traceparent), text(takeover)]];
}

function claimed([verdict, fence, , ...rest]) {
  const [traceparent, left] = rest.slice(7);
  return {verdict, traceparent, fence: fence === null ? null : Number(fence), leaseMs: millisecondsOf(left), answer: answerOf(rest)};
}

/** The status of an answer that left a doubt: try_start does not return it. */
const peekStatus = ({scope, key, tenant}) => [sql.peekStatus, [scope, key, tenant]];

/** Which claim holds it, after the reply to a claim was lost. */
const peek = ({scope, key, tenant}) => [sql.peek, [scope, key, tenant]];

const peeked = ([, fence, state, , , , , , , , , left, owner, attempts]) => ({owner, state, fence: Number(fence), attempts: Number(attempts), leaseMs: millisecondsOf(left)});

const complete = ({scope, key, tenant}, fence, answer) => [sql.complete, [scope, key, text(fence), ...outcome(answer), ...result(answer), tenant]];

/** retryable null: the outcome is unknown. */
const fail = ({scope, key, tenant}, fence, retryable, {code, message, answer = {}} = {}) =>
  [sql.fail, [scope, key, text(fence), text(retryable), text(code), text(message), ...outcome(answer), tenant]];

/**
 * The outcome of an effect elsewhere is unknown. Sent in the transaction that started the intent, after ROLLBACK TO; or later, when another attempt may
 * have claimed it: its claim is left alone.
 */
const doubt = ({scope, key, tenant, print, traceparent}, {status}, {code, message} = reasons.UNCLEAR) =>
  [sql.doubt, [scope, key, tenant, print, text(traceparent), code, message, text(status)]];

const renew = ({scope, key, tenant}, fence, leaseMs) => [sql.renew, [scope, key, text(fence), seconds(leaseMs), tenant]];

const release = ({scope, key, tenant}, fence) => [sql.release, [scope, key, text(fence), tenant]];

const UUID_V7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** The key that once.receive gives the intent of a message: its id is only a name, and has no birthday. */
const keyOfMessage = (id) => (UUID_V7.test(id) ? `pgonce:id:${id}` : id);

function receive(consumer, message, payload, {tenant, traceparent}) {
  const [kind, parameters] = fingerprint(payload, tenant);
  return [sql.receive[kind], [...parameters, consumer, message, text(traceparent)]];
}

/** A Date; an invalid one is a mistake, and no time in the past. */
function timeOf(notBefore) {
  if (!(notBefore instanceof Date) || Number.isNaN(notBefore.getTime())) {
    throw new TypeError('notBefore must be a valid Date');
  }
  return notBefore.toISOString();
}

const eventOf = (topic, payload, {aggregateType, aggregateId, eventType, scope, key, headers, tenant, traceparent}) =>
  [nameOf(topic, 'topic'), payload, nameOf(aggregateType, 'aggregateType'), nameOf(aggregateId, 'aggregateId'), nameOf(eventType, 'eventType'), nameOf(scope, 'scope'),
    nameOf(key, 'key'), headers === undefined ? null : JSON.stringify(headers), nameOf(tenant, 'tenant'), text(traceparent)];

function emit(topic, payload, options) {
  const event = eventOf(topic, JSON.stringify(payload) ?? null, options);
  return options.notBefore === undefined ? [sql.emit, event] : [sql.emitLater, [...event, timeOf(options.notBefore)]];
}

/** Bytes as they are: to encode a string would be a guess. Only events of JSON can be delayed. */
function emitBytes(topic, payload, contentType, options) {
  if (!bytes(payload)) throw new TypeError('pgonce: the payload of emitBytes is a Buffer or another Uint8Array');
  if (typeof contentType !== 'string') throw new TypeError('pgonce: contentType is a string, such as application/x-protobuf');
  if (options.notBefore !== undefined) throw new TypeError('pgonce: notBefore is for emit: an event of bytes is published at once');
  return [sql.emitBytes, [...eventOf(topic, bytes(payload), options), contentType]];
}

const lock = (resource, waitMs) => [sql.lock, [nameOf(resource, 'resource'), String(waitMs / 1000)]];

module.exports = {
  begin, tryStart, started, finish, claim, claimed, peek, peekStatus, peeked, complete, fail, doubt, renew, release, receive, emit, emitBytes, lock, bodyOf, checkAnswer, keyOfMessage, nameOf,
  SAVEPOINT: ['SAVEPOINT once_effect'], ROLLBACK_TO: ['ROLLBACK TO SAVEPOINT once_effect'], COMMIT: ['COMMIT'], ROLLBACK: ['ROLLBACK'],
  RESET_ROLE: ['RESET ROLE'],
  SAVEPOINT_STORE: ['SAVEPOINT once_store'], ROLLBACK_TO_STORE: ['ROLLBACK TO SAVEPOINT once_store'],
};
