// SPDX-License-Identifier: PostgreSQL
// The orders of the torture (documented in tests/torture/languages.py). All calls are the client's; only the effects are the agent's own SQL.
// With a port it serves HTTP there (tests/torture/services.py), by the framework that the agent is told instead of a driver (services.js).
'use strict';

const {randomUUID} = require('crypto');

const {FRAMEWORKS} = require('./services');
const {driver: framework, once, pool, servesAt, theirs} = require('./world');
const {Failed, FinalFailure, OnceError, OutcomeUnknown} = theirs('./index.js');

const DEADLINE_MS = 6000;
const VERDICTS = {mismatch: 'mismatch', message_mismatch: 'mismatch', active: 'busy', in_doubt: 'in_doubt', expired: 'expired', scope_required: 'refused', key_malformed: 'refused', refused: 'refused', outcome_unknown: 'unknown'};
const ADVANCE = "SELECT body, step FROM torture.advance($1, $2, $3, $4, $5, 'node')";
const WRITE = "SELECT torture.write($1, $2, $3, $4, $5, 'node', $6, $7) AS body";
// What PostgreSQL says when a statement certainly had no lasting effect.
const DEFINITE = /^(P4|40|55|57014|53|25|22|42|23|0A|P0)/;

/** An ordinary error of an effect: it is taken back, and the next attempt may run. */
class NotNow extends Error {}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const leaveAt = (order, step) => {
  if (order.leave === step) process.kill(process.pid, 'SIGKILL');
};
const orderOf = (req) => JSON.parse(req.headers['x-orders']);
const lost = () => {}; // the next query says so
const codeOf = (error) => error.sqlstate ?? error.code ?? error.name;
const stored = (answer, replayed, code = '') => ({verdict: 'acknowledged', code, status: answer.status, body: answer.body, replayed});

/** The verdict of an error that the client has thrown. */
function refused(error) {
  if (error instanceof FinalFailure) return stored(error.answer, error.cause === undefined, 'final_failure');
  if (error instanceof OnceError) return {verdict: VERDICTS[error.code] ?? 'failed', code: codeOf(error)};
  return {verdict: 'failed', code: error instanceof NotNow ? 'retryable' : codeOf(error)};
}

/** As what the answer is given, and what it is then. */
function given(way, bytes) {
  if (way === 'body') return bytes;
  if (way === 'json') {
    try {
      return JSON.parse(bytes.toString());
    } catch {
      // no JSON: as text
    }
  }
  return bytes.toString();
}

/** What an order is about, in a transaction: the bytes of its answer. emit: the intent's own. */
async function advance(order, tx, emit) {
  const {scope, key, tenant, payload, attempt} = order;
  const said = JSON.parse(payload);
  leaveAt(order, 'begun');
  await pause(order.before_ms);
  if (order.end === 'retry') throw new NotNow();
  if (order.neighbour === 'second') {
    const second = await pool.connect();
    await second.query('SELECT 1').finally(() => second.release());
  }
  const {rows: [{body, step}]} = await tx.query(ADVANCE, [tenant, scope, key, payload, attempt]);
  for (let nth = 1; nth <= said.events; nth++) {
    const event = [nth === 1 ? 'torture.done' : 'torture.checked', {tenant, scope, key, aggregate: said.aggregate, step, nth}];
    const about = {aggregateType: 'account', aggregateId: said.aggregate};
    await (said.caused ? emit(...event, about) : once.emit(tx, ...event, {...about, tenant, scope: null, key: null}));
  }
  if (order.swallow) await tx.query('SELECT 1/0').catch(() => {});
  await pause(order.after_ms);
  leaveAt(order, 'written');
  if (order.neighbour === 'commit') await tx.query('COMMIT');
  return body;
}

async function transaction(order) {
  const {scope, key, tenant, payload} = order;
  const effect = async (tx, {emit}) => {
    const body = await advance(order, tx, emit);
    if (order.end === 'final') throw new Failed('torture', 'as ordered', {status: 422, body: randomUUID()});
    return {status: 201, body: given(order.way, body)};
  };
  try {
    const answer = await once.run(scope, key, Buffer.from(payload), effect, {tenant, isolation: order.isolation, deadlineMs: DEADLINE_MS});
    return stored(answer, answer.replayed);
  } catch (error) {
    return refused(error);
  }
}

async function leased(order) {
  const {scope, key, tenant, payload, attempt} = order;
  let held;
  try {
    held = await once.claim(scope, key, Buffer.from(payload), {tenant, owner: `attempt ${attempt}`, deadlineMs: DEADLINE_MS});
  } catch (error) {
    const answer = refused(error);
    // Its claim may have been granted, and the answer lost.
    return answer.verdict === 'failed' ? {...answer, loose: true} : answer;
  }
  if (held.replayed) return stored(held, true, 'replay_success');
  leaveAt(order, 'claimed');
  await pause(order.before_ms);
  const unheard = (error) => ({verdict: 'failed', code: codeOf(error), loose: error.sqlstate !== 'P4011'});
  try {
    if (order.end === 'retry' || held.signal.aborted) {
      if (attempt % 2 === 0 || !(await held.release())) await held.fail(true);
      return {verdict: 'failed', code: 'retryable'};
    }
    if (order.end === 'final') {
      const answer = {status: 422, body: Buffer.from(randomUUID())};
      await held.fail(false, {code: 'torture', message: 'as ordered', answer});
      return stored(answer, false);
    }
    if (order.doubt_ms) {
      await held.fail(null);
      await pause(order.doubt_ms);
    }
  } catch (error) {
    return order.end === 'final' && error instanceof OutcomeUnknown ? {verdict: 'unknown', code: error.code} : unheard(error);
  }
  let body;
  try {
    ({rows: [{body}]} = await pool.query(WRITE, [tenant, scope, key, payload, attempt, held.fence, order.mode === 'verified']));
  } catch (error) {
    const none = DEFINITE.test(error.code ?? '') && error.severity === 'ERROR';
    const told = await held.fail(none ? true : null).then(() => true, () => false);
    return {verdict: none && told ? 'failed' : 'unknown', code: codeOf(error)};
  }
  leaveAt(order, 'done');
  await pause(order.after_ms);
  if (order.doubt_ms && attempt % 2) return {verdict: 'unknown', code: 'doubt'};
  try {
    await held.complete({status: 201, body: order.way === 'body' ? body : body.toString()});
  } catch (error) {
    return {verdict: 'unknown', code: codeOf(error)}; // somebody else has decided meanwhile: what is stored says the next attempt
  }
  return stored({status: 201, body}, false);
}

/** A message: by consume, or by hand in a transaction of the consumer's own. */
async function received(order) {
  const {scope, key, tenant, payload, attempt, isolation} = order;
  const message = Buffer.from(payload);
  const effect = (tx) => advance(order, tx, (topic, event, about) => once.emit(tx, topic, event, {scope, key, tenant, ...about}));
  const applied = (verdict) => {
    leaveAt(order, 'done');
    return {verdict: 'acknowledged', code: verdict, replayed: verdict === 'duplicate'};
  };
  if (attempt % 2 === 1) {
    return once.consume(scope, key, message, effect, {tenant, isolation, deadlineMs: DEADLINE_MS}).then(applied, refused);
  }
  let tx;
  let committing = false;
  try {
    tx = await pool.connect();
    tx.on('error', lost);
    await tx.query(`BEGIN ISOLATION LEVEL ${isolation}`);
    const verdict = await once.receive(tx, scope, key, message, {tenant});
    if (verdict === 'process') await effect(tx);
    committing = true;
    await tx.query('COMMIT');
    tx.off('error', lost);
    tx.release();
    return applied(verdict);
  } catch (error) {
    tx?.release(true);
    const none = !committing || (DEFINITE.test(error.code ?? '') && error.severity === 'ERROR');
    return none ? refused(error) : {verdict: 'unknown', code: codeOf(error)};
  }
}

/** The answer to a request that the middleware has let in. */
async function execute(req) {
  const order = {...orderOf(req), payload: (req.rawBody ?? req.body).toString()};
  let body;
  try {
    body = await advance(order, req.pgonce.tx, req.pgonce.emit);
  } catch (error) {
    if (!(error instanceof NotNow) || order.attempt % 2 === 0) throw error;
    return {status: 503, headers: [['X-Done', 'no']], body: ''};
  }
  const said = order.end === 'final' ? {status: 422, type: 'text/plain', body: Buffer.from(randomUUID())} : {status: 201, type: 'application/octet-stream', body};
  return {...said, headers: [['Content-Type', said.type]], ...AROUND[order.neighbour]?.(said.body)};
}

const AROUND = {
  pieces: () => ({pieces: 3, slow: true}),
  destroy: () => ({pieces: 2, broken: true}),
  trailers: (body) => ({trailers: {'X-Sum': String(body.length)}}),
};

function serve() {
  const options = {scope: 'requests', handlerMs: 4000, tenant: (req) => orderOf(req).tenant};
  return FRAMEWORKS[framework](once, {name: 'requests', port: Number(servesAt), options, execute});
}

async function answer(order) {
  const said = await ({transaction, receive: received}[order.mode] ?? leased)(order);
  return {...said, body: said.body === undefined || said.body === null ? null : Buffer.from(said.body).toString('base64')};
}

module.exports = {answer, serve};
