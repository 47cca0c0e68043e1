// SPDX-License-Identifier: PostgreSQL
// pgonce for Node: the contract in the caller's own pool. See README.md; the types are in index.d.ts.
'use strict';

const {claim} = require('./lib/claim');
const contract = require('./lib/contract');
const errors = require('./lib/errors');
const {batch} = require('./lib/batch');
const {express, fastify, http} = require('./lib/middleware');
const {keyOfHeader} = require('./lib/key');
const {traceparent, traced} = require('./lib/trace');
const {Attempt, conclude, lent, repeat, transact} = require('./lib/transaction');

const {Failed, NotDone} = errors;

/** A statement in the caller's own transaction. */
async function within(tx, statement) {
  if (typeof tx?.query !== 'function' || !tx.connection) throw new TypeError('pgonce: this needs the connection of a transaction, not a pool: a pool takes another one for each query');
  if (tx.getTransactionStatus?.() === 'I') throw new errors.OnceError('not_in_transaction', 'this needs a transaction: send BEGIN first');
  try {
    const [{rows}] = await batch(tx, [statement]);
    return rows[0][0];
  } catch (error) {
    throw errors.ofDriver(error);
  }
}

class Once {
  #pool; #tenant;

  /** pool: of pg. tenant: of calls that name none. */
  constructor(pool, {tenant = ''} = {}) {
    if (typeof pool?.connect !== 'function' || typeof pool.query !== 'function' || !('totalCount' in pool)) throw new TypeError('pgonce: new Once(pool) needs a Pool of pg');
    // An idle connection that the server ends is no error here: the pool makes another one. Where nobody listens, the process would end.
    if (pool.listenerCount?.('error') === 0) pool.on('error', () => {});
    this.#pool = pool;
    this.#tenant = tenant;
  }

  #intent(scope, key, request, options) {
    if (request === undefined) throw new TypeError('pgonce: a request is needed: what tells a retry from another operation with the same key');
    return {scope, key, request, tenant: options.tenant ?? this.#tenant, traceparent: options.traceparent ?? traceparent()};
  }

  run(scope, key, request, effect, options = {}) {
    return traced('run', scope, async (verdict) => {
      const intent = this.#intent(scope, key, request, options);
      const said = await repeat((settled) => this.#attempt(intent, effect, options, settled), options);
      verdict(said.verdict);
      if (said.failed) throw said.failed;
      return said.fresh ?? {...conclude(said), replayed: true};
    });
  }

  async #attempt(intent, effect, options, settled) {
    const said = await Attempt.begin(this.#pool, intent, options.isolation);
    if (!said.attempt) return said;
    settled();
    const {attempt} = said;
    let answer;
    let failed;
    try {
      answer = contract.checkAnswer(await effect(attempt.tx, this.within(attempt)));
    } catch (error) {
      if (!(error instanceof Failed)) throw await attempt.threw(error);
      failed = error;
      answer = contract.checkAnswer(error.answer);
    }
    await (failed ? attempt.fail(failed, answer) : attempt.finish(answer));
    const fresh = stored(answer, failed);
    if (!failed) return {verdict: 'proceed', fresh: {...fresh, replayed: false}};
    const error = errors.ofSqlstate('P4030');
    Object.assign(error, {answer: fresh, status: fresh.status ?? error.status, cause: failed});
    return {verdict: 'final_failure', failed: error};
  }

  /** What an effect gets besides its transaction. */
  within({intent, tx}) {
    const {scope, key, tenant} = intent;
    return {
      scope, key, tenant, traceparent: intent.traceparent,
      emit: (topic, payload, options = {}) => this.emit(tx, topic, payload, {scope, key, tenant, ...options}),
      lock: (resource, options) => this.lock(tx, resource, options),
    };
  }

  claim(scope, key, request, options = {}) {
    return traced('claim', scope, async (verdict) => {
      const claimed = await claim(this.#pool, this.#intent(scope, key, request, options), options);
      verdict(claimed.replayed ? 'replay' : 'proceed');
      return claimed;
    });
  }

  /** fn as a function that runs at most once for each key: for a tool call of an agent, a payment. Its result is stored as JSON, and replayed. */
  effect({scope, key, request = (...args) => args, ...options}, fn) {
    return async (...args) => {
      const of = (value) => (typeof value === 'function' ? value(...args) : value);
      // Of an attempt that fell silent nobody knows whether it did it: in doubt, not a takeover.
      const held = await this.claim(of(scope), of(key), of(request), {takeover: false, ...options});
      if (held.replayed) return held.body === null ? undefined : JSON.parse(held.body);
      let result;
      try {
        result = await fn(...args, {signal: held.signal, fence: held.fence, traceparent: held.traceparent});
      } catch (error) {
        const retryable = error instanceof NotDone ? true : error instanceof Failed ? false : null;
        await held.fail(retryable, {code: error instanceof Failed ? error.code : undefined, answer: error instanceof Failed ? error.answer : undefined,
          message: error instanceof Failed ? error.message : undefined});
        throw error;
      }
      const text = JSON.stringify(result);
      await held.complete(text === undefined ? {} : {body: text, headers: {'Content-Type': 'application/json'}});
      return text === undefined ? undefined : JSON.parse(text);
    };
  }

  /** In the transaction of tx. Resolves to the event's id. */
  emit(tx, topic, payload, options = {}) {
    return within(tx, contract.emit(topic, payload, {tenant: this.#tenant, traceparent: traceparent(), ...options}));
  }

  /** In the consumer's own transaction: 'process' or 'duplicate'. */
  receive(tx, consumer, message, payload, options = {}) {
    return within(tx, contract.receive(consumer, message, payload, {tenant: this.#tenant, traceparent: traceparent(), ...options}));
  }

  /** receive, the effect and COMMIT: acknowledge the message when it resolves. */
  consume(consumer, message, payload, effect, options = {}) {
    return traced('consume', consumer, async (verdict) => {
      const statement = contract.receive(consumer, message, payload, {tenant: this.#tenant, traceparent: traceparent(), ...options});
      const said = await transact(this.#pool, async (session, settled) => {
        const [, {rows}] = await session.send([contract.begin(options.isolation), statement]);
        settled();
        if (rows[0][0] === 'process') await effect(lent(session));
        return {verdict: rows[0][0]};
      }, options);
      verdict(said.verdict);
      return said.verdict;
    });
  }

  /** In the transaction of tx: false where somebody else has it for longer than waitMs. */
  async lock(tx, resource, {waitMs = 0} = {}) {
    return (await within(tx, contract.lock(resource, waitMs))) === 't';
  }

  express(options) {
    return express(this, this.#pool, options);
  }

  fastify(options) {
    return fastify(this, this.#pool, options);
  }

  http(options, handler) {
    return http(this, this.#pool, options, handler);
  }
}

/** What a replay will give. */
function stored(answer, failed) {
  const [text, bytes] = contract.bodyOf(answer.body);
  return {
    status: answer.status ?? null, headers: answer.headers ?? null, body: bytes ? Buffer.from(bytes) : text === null ? null : Buffer.from(text),
    resultType: answer.resultType ?? null, resultId: answer.resultId ?? null, errorCode: failed?.code ?? null, errorMessage: failed?.message ?? null,
  };
}

const {OnceError, Mismatch, Active, InDoubt, Expired, FinalFailure, OutcomeUnknown, LeaseLost} = errors;
/** For express.json({verify: rawBody}), where a parser comes before the middleware. */
const rawBody = (req, _res, body) => {
  req.rawBody = body;
};

module.exports = {Once, OnceError, Mismatch, Active, InDoubt, Expired, FinalFailure, OutcomeUnknown, LeaseLost, Failed, NotDone, keyOfHeader, rawBody};
