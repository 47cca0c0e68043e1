// SPDX-License-Identifier: PostgreSQL
// The calls of spec/cases/sql.json and faults.json, and the services of http.json.
'use strict';

const {inspect} = require('util');

const {pool, theirs, useNodes, world} = require('./world');
const {Active, Expired, Failed, FinalFailure, InDoubt, LeaseLost, Mismatch, NotDone, OnceError, OutcomeUnknown, SlotClosed} = theirs('./index.js');
const {Service, behind, bytesOf} = require('./services');

const claims = {};
let service;
let kept; // the transaction of an effect, after it

function answerOf(said = {}) {
  const body = said.json ?? said.text ?? bytesOf(said);
  return {status: said.status, headers: said.headers, body, resultType: said.result_type, resultId: said.result_id};
}

function requestOf({request}) {
  if (request.http) return {http: {method: request.http.method, target: request.http.target, contentType: request.http.content_type, body: request.http.text}};
  return 'json' in request ? request.json : request.text ?? bytesOf(request);
}

const said = (answer) => ({
  replayed: answer.replayed ?? false, status: answer.status, headers: answer.headers, body: answer.body === null || answer.body === undefined ? null : Buffer.from(answer.body).toString('base64'),
  result_type: answer.resultType, result_id: answer.resultId,
});

/** converse: says a line, and waits for one. */
async function act(each, tx, converse) {
  const {aggregate_type: aggregateType, aggregate_id: aggregateId, event_type: eventType, content_type: contentType, topic, payload, base64, ...more} = each.emit ?? each.emit_bytes ?? {};
  const about = {aggregateType, aggregateId, eventType, ...more};
  if (each.sql) await tx.query(each.sql);
  else if (each.meanwhile) await converse({meanwhile: each.meanwhile});
  else if (each.keep) kept = tx;
  else if (each.emit) await world.once.emit(tx, topic, payload, about);
  else if (each.emit_bytes) await world.once.emitBytes(tx, topic, Buffer.from(base64, 'base64'), contentType, about);
  else if (each.swallow) await tx.query(each.swallow).catch(() => {});
  else if (each.behind) await behind(tx, each.behind);
  else if ((await world.once.lock(tx, each.lock.resource, {waitMs: each.lock.wait_ms})) !== each.is) throw new Error(`the lock ${each.lock.resource} is not ${each.is}`);
}

/** What an effect throws where it is told to. */
class Thrown extends Error {}

/** of.calls: how often it was called. */
const effectOf = ({effect}, of, converse) => async (tx) => {
  of.calls++;
  for (const each of effect.do ?? []) if (of.calls <= (each.first ?? Infinity)) await act(each, tx, converse);
  if (effect.throw) throw new Thrown(effect.throw);
  if (effect.not_done) throw new NotDone(effect.not_done);
  if (effect.fail) throw new Failed(effect.fail.code, effect.fail.message, answerOf(effect.fail));
  return answerOf(effect.answer);
};

const optionsOf = ({tenant, wait_ms: waitMs, deadline_ms: deadlineMs, isolation}) => ({tenant, waitMs, deadlineMs, isolation});

/** The verdict when an applied message is received again, in the caller's own transaction. */
async function receivedAgain(consumer, message, request, tenant) {
  const tx = await pool.connect();
  try {
    await tx.query('BEGIN');
    return await world.once.receive(tx, consumer, message, request, {tenant});
  } finally {
    await tx.query('ROLLBACK');
    tx.release();
  }
}

const CALLS = {
  run: async (order, of, converse) => said(await world.once.run(order.scope, order.key, requestOf(order), effectOf(order, of, converse), optionsOf(order))),
  claim: async (order) => {
    const {scope, key, lease_ms: leaseMs, retention_ms: retentionMs, takeover} = order;
    const claim = await world.once.claim(scope, key, requestOf(order), {...optionsOf(order), leaseMs, retentionMs, takeover});
    if (claim.replayed) return said(claim);
    claims[order.as] = claim;
    return {verdict: claim.verdict, fence: claim.fence};
  },
  complete: async ({of, answer}) => ({is: await claims[of].complete(answerOf(answer))}),
  fail: async ({of, answer, retryable, code, message}) => ({is: await claims[of].fail(retryable, {code, message, answer: answerOf(answer)})}),
  renew: async ({of}) => ({is: await claims[of].renew()}),
  release: async ({of}) => ({is: await claims[of].release()}),
  lost: async ({of}) => {
    const {signal} = claims[of];
    if (!signal.aborted) await new Promise((resolve) => signal.addEventListener('abort', resolve, {once: true}));
    return {is: signal.reason instanceof LeaseLost};
  },
  late: async ({sql}) => void (await kept.query(sql)),
  receive: async (order, of, converse) => {
    const {consumer, message, tenant} = order;
    const verdict = await world.once.consume(consumer, message, requestOf(order), effectOf(order, of, converse), {tenant});
    return world.pools[0] === pool ? {verdict, again: await receivedAgain(consumer, message, requestOf(order), tenant)} : {verdict};
  },
  effect: async (order, of, converse) => {
    const {scope, key, tenant, result, work = {}} = order;
    const does = effectOf({effect: work}, of, converse);
    const value = await world.once.effect({scope, key, tenant, request: requestOf(order)}, async () => {
      await does();
      return bytesOf(result).toString();
    })();
    return said({body: JSON.stringify(value)});
  },
  forget: async () => {
    for (const name of Object.keys(claims)) {
      await claims[name].release();
      delete claims[name];
    }
    return {};
  },
  nodes: async ({dsns, router}) => void (await useNodes(dsns, router)),
  routed: async () => world.routed,
  serve: async (order) => {
    service = new Service(order);
    return {port: await service.start()};
  },
  begun: async () => service.begun(),
  let: async () => service.release(),
  stop: async () => ({...(await service.stop()), out: world.pools.reduce((out, each) => out + each.totalCount - each.idleCount, 0)}),
};

// What an error of this code has to be an instance of.
const CLASSES = {active: Active, expired: Expired, final_failure: FinalFailure, in_doubt: InDoubt, mismatch: Mismatch, message_mismatch: Mismatch, event_mismatch: Mismatch, outcome_unknown: OutcomeUnknown, slot_closed: SlotClosed};
// A use of the transaction that is not allowed.
const USAGE = new Set(['transaction_control', 'not_in_transaction', 'not_divided']);

function refused(error) {
  if (error instanceof Thrown) return {code: 'application'};
  if (error instanceof NotDone) return {code: 'not_done'};
  const text = inspect(error, {depth: 9, showHidden: true});
  if (!(error instanceof (CLASSES[error.code] ?? OnceError))) return {code: error.severity ? 'database' : 'none of the client', sqlstate: error.code, text};
  return {code: USAGE.has(error.code) ? 'usage' : error.code, sqlstate: error.sqlstate, status: error.status, retryable: error.retryable, answer: error.answer && said(error.answer), text};
}

async function answer(order, converse) {
  const of = {calls: 0};
  const one = async (n) => {
    const own = order.callers ? {...order, tenant: order.tenant.replace('{n}', n)} : order;
    try {
      return {result: await CALLS[order.call](own, of, converse) ?? {}};
    } catch (error) {
      return {error: refused(error)};
    }
  };
  if (order.callers) return {each: await Promise.all(Array.from({length: order.callers}, (_, n) => one(n))), calls: of.calls};
  return {...await one(), calls: of.calls};
}

module.exports = {answer};
