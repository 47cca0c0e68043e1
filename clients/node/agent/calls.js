// SPDX-License-Identifier: PostgreSQL
// The calls of clients/conformance/sql.json, and the services of http.json.
'use strict';

const {once, pool, theirs} = require('./world');
const {Failed, OnceError} = theirs('./index.js');
const {Service, bytesOf} = require('./services');

const claims = {};
let service;

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

async function act(each, tx) {
  const {aggregate_type: aggregateType, aggregate_id: aggregateId, event_type: eventType, content_type: contentType, topic, payload, base64, ...more} = each.emit ?? each.emit_bytes ?? {};
  const about = {aggregateType, aggregateId, eventType, ...more};
  if (each.sql) await tx.query(each.sql);
  else if (each.emit) await once.emit(tx, topic, payload, about);
  else if (each.emit_bytes) await once.emitBytes(tx, topic, Buffer.from(base64, 'base64'), contentType, about);
  else if (each.swallow) await tx.query(each.swallow).catch(() => {});
  else if ((await once.lock(tx, each.lock.resource, {waitMs: each.lock.wait_ms})) !== each.is) throw new Error(`the lock ${each.lock.resource} is not ${each.is}`);
}

/** What an effect throws where it is told to. */
class Thrown extends Error {}

const effectOf = ({effect}) => async (tx) => {
  for (const each of effect.do ?? []) await act(each, tx);
  if (effect.throw) throw new Thrown(effect.throw);
  if (effect.fail) throw new Failed(effect.fail.code, effect.fail.message, answerOf(effect.fail));
  return answerOf(effect.answer);
};

/** The verdict when an applied message is received again, in the caller's own transaction. */
async function receivedAgain(consumer, message, request, tenant) {
  const tx = await pool.connect();
  try {
    await tx.query('BEGIN');
    return await once.receive(tx, consumer, message, request, {tenant});
  } finally {
    await tx.query('ROLLBACK');
    tx.release();
  }
}

const CALLS = {
  run: async (order) => said(await once.run(order.scope, order.key, requestOf(order), effectOf(order), {tenant: order.tenant})),
  claim: async (order) => {
    const {scope, key, tenant, lease_ms: leaseMs, retention_ms: retentionMs, takeover} = order;
    const claim = await once.claim(scope, key, requestOf(order), {tenant, leaseMs, retentionMs, takeover});
    if (claim.replayed) return said(claim);
    claims[order.as] = claim;
    return {verdict: claim.verdict, fence: claim.fence};
  },
  complete: async ({of, answer}) => ({is: await claims[of].complete(answerOf(answer))}),
  fail: async ({of, answer, retryable, code, message}) => ({is: await claims[of].fail(retryable, {code, message, answer: answerOf(answer)})}),
  renew: async ({of}) => ({is: await claims[of].renew()}),
  release: async ({of}) => ({is: await claims[of].release()}),
  receive: async (order) => {
    const {consumer, message, tenant} = order;
    const verdict = await once.consume(consumer, message, requestOf(order), effectOf(order), {tenant});
    return {verdict, again: await receivedAgain(consumer, message, requestOf(order), tenant)};
  },
  effect: async (order) => {
    const result = bytesOf(order.result).toString();
    const value = await once.effect({scope: order.scope, key: order.key, tenant: order.tenant, request: requestOf(order)}, async () => result)();
    return said({body: JSON.stringify(value)});
  },
  forget: async () => {
    for (const name of Object.keys(claims)) {
      await claims[name].release();
      delete claims[name];
    }
    return {};
  },
  serve: async (order) => {
    service = new Service(order);
    return {port: await service.start()};
  },
  begun: async () => service.begun(),
  let: async () => service.release(),
  stop: async () => ({...(await service.stop()), out: pool.totalCount - pool.idleCount}),
};

function refused(error) {
  if (error instanceof Thrown) return {code: 'application'};
  const text = `${error.message} ${error.stack}`;
  if (!(error instanceof OnceError)) return {code: 'none of the client', text};
  return {code: error.code, sqlstate: error.sqlstate, status: error.status, retryable: error.retryable, answer: error.answer && said(error.answer), text};
}

async function answer(order) {
  try {
    return {result: await CALLS[order.call](order)};
  } catch (error) {
    return {error: refused(error)};
  }
}

module.exports = {answer};
