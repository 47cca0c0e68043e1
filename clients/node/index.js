// SPDX-License-Identifier: PostgreSQL
// pgonce for Node: the contract in the caller's own pool. See README.md; the types are in index.d.ts.
'use strict';

require('./lib/needs');

const {AsyncLocalStorage} = require('async_hooks');

const {claim} = require('./lib/claim');
const contract = require('./lib/contract');
const errors = require('./lib/errors');
const {batch} = require('./lib/batch');
const {intentOf, lent} = require('./lib/lent');
const reasons = require('./lib/reasons');
const {headersOf, send} = require('./lib/answer');
const {fastify} = require('./lib/fastify');
const {express, http} = require('./lib/middleware');
const {nodes} = require('./lib/nodes');
const {checkBase} = require('./lib/problem');
const {answerOf} = require('./lib/reply');
const {keyOf} = require('./lib/request');
const {Route} = require('./lib/route');
const {keyOfHeader} = require('./lib/key');
const {traceparent, traced} = require('./lib/trace');
const {Attempt, conclude, leaveInDoubt, repeat, transact} = require('./lib/transaction');

const {Failed, NotDone} = errors;
const {nameOf} = contract;

// The intent for which a function of once.effect is at work.
const working = new AsyncLocalStorage();

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
  #route; #tenant; #logger;

  /** pool: of pg, or a function of the tenant that returns one, such as nodes([...]). tenant: of calls that name none. logger: its error(line) is told why a request got a 5xx of this client's, its debug(line) why one was refused. */
  constructor(pool, {tenant = '', logger = {error: (line) => console.error(line)}} = {}) {
    if (typeof logger?.error !== 'function') throw new TypeError('pgonce: a logger has a method error(line)');
    this.#route = new Route(pool);
    this.#tenant = nameOf(tenant, 'tenant');
    this.#logger = logger;
  }

  #intent(scope, key, request, options) {
    if (request === undefined) throw new TypeError('pgonce: a request is needed: what tells a retry from another operation with the same key');
    return {
      scope: nameOf(scope, 'scope'), key: nameOf(key, 'key'), request, tenant: nameOf(options.tenant ?? this.#tenant, 'tenant'),
      traceparent: options.traceparent ?? traceparent(),
    };
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
    const said = await this.#route.at(intent.tenant, (pool) => Attempt.begin(pool, intent, {isolation: options.isolation}));
    if (!said.attempt) return said;
    settled();
    const {attempt} = said;
    let answer;
    let failed;
    try {
      try {
        answer = await effect(attempt.tx, this.within(attempt));
      } catch (error) {
        if (!(error instanceof Failed)) throw error;
        failed = error;
        ({answer} = error);
      }
      answer = contract.checkAnswer(answer);
    } catch (error) {
      const thrown = await attempt.threw(error);
      if (attempt.elsewhere) await this.#gone(attempt.intent, thrown, options);
      throw thrown;
    }
    await (failed ? attempt.fail(failed, answer) : attempt.finish(answer)).catch((error) => this.#gone(attempt.intent, error, options));
    const fresh = stored(answer, failed);
    if (!failed) return {verdict: 'proceed', fresh: {...fresh, replayed: false}};
    return {verdict: 'final_failure', failed: errors.final(fresh, {replayed: false, cause: failed})};
  }

  /** Of an error of finish, or instead of the effect's: where the transaction was not there any more, the intent is in doubt. */
  async #gone(intent, error, {deadlineMs}) {
    const known = errors.ofDriver(error);
    if (known.code !== 'not_started') throw error;
    try {
      await leaveInDoubt(this.#route, intent, {deadlineMs});
    } catch (unstored) {
      throw errors.unknown(unstored);
    }
    throw errors.doubt({...stored({}), errorCode: reasons.ENDED.code, errorMessage: reasons.ENDED.message}, known);
  }

  /** What an effect gets besides its transaction. */
  within({intent, tx}) {
    const {scope, key, tenant} = intent;
    return {
      scope, key, tenant, traceparent: intent.traceparent,
      emit: (topic, payload, options) => this.emit(tx, topic, payload, options),
      emitBytes: (topic, payload, contentType, options) => this.emitBytes(tx, topic, payload, contentType, options),
      lock: (resource, options) => this.lock(tx, resource, options),
    };
  }

  /** work() of a handler in mode 'lease': an event in it is of its intent. */
  working({held, intent}, work) {
    return held ? working.run(intent, work) : work();
  }

  claim(scope, key, request, options = {}) {
    return traced('claim', scope, async (verdict) => {
      const claimed = await claim(this.#route, this.#intent(scope, key, request, options), options);
      verdict(claimed.replayed ? 'replay' : 'proceed');
      return claimed;
    });
  }

  /** fn as a function that runs at most once for each key: for a tool call of an agent, a payment. Its result is stored as JSON, and replayed. */
  effect({scope, key, tenant, request = (...args) => args, ...options}, fn) {
    return async (...args) => {
      const of = (value) => (typeof value === 'function' ? value(...args) : value);
      const intent = this.#intent(of(scope), of(key), of(request), {...options, tenant: of(tenant)});
      // Of an attempt that fell silent nobody knows whether it did it: in doubt, not a takeover.
      const held = await this.claim(intent.scope, intent.key, intent.request, {takeover: false, ...options, tenant: intent.tenant});
      if (held.replayed) return held.body === null ? undefined : JSON.parse(held.body);
      let result;
      try {
        const {scope: ofScope, key: ofKey, tenant: ofTenant} = intent;
        const within = {signal: held.signal, fence: held.fence, traceparent: held.traceparent, scope: ofScope, key: ofKey, tenant: ofTenant};
        result = await working.run(intent, () => fn(...args, within));
      } catch (error) {
        throw await this.#ended(held, error);
      }
      return this.#completed(held, result);
    };
  }

  /** Of work that is done. An answer that is no JSON, or is too large, nobody will ever get: then that is the reason that is stored. */
  async #completed(held, result) {
    let text;
    try {
      text = JSON.stringify(result);
    } catch (error) {
      throw await this.#ended(held, error, reasons.NOT_KEPT.code);
    }
    try {
      await held.complete(text === undefined ? {} : {body: text, headers: {'Content-Type': 'application/json'}});
    } catch (error) {
      const known = errors.ofDriver(error);
      throw known.code === 'too_large' ? await this.#ended(held, known, reasons.NOT_KEPT.code) : error;
    }
    return text === undefined ? undefined : JSON.parse(text);
  }

  /** The work of a claim threw: stored as it says, with why. What is to be thrown, which is what the next call will get. */
  async #ended(held, error, reason) {
    if (error instanceof Failed) {
      const {code, message} = error;
      const answer = contract.checkAnswer(error.answer);
      await held.fail(false, {code, message, answer});
      return errors.final(stored(answer, error), {replayed: false, cause: error});
    }
    const {code, message} = {...errors.reasonOf(error), ...(reason && {code: reason})};
    try {
      await held.fail(...(error instanceof NotDone ? [true, {code: reasons.NOT_DONE.code, message}] : [null, {code, message}]));
    } catch (unreported) {
      // Then it is in doubt when its lease has passed.
      this.#logger.error(`pgonce: how an attempt ended could not be stored: ${errors.lineOf(unreported)}`);
    }
    return error instanceof NotDone || error instanceof errors.LeaseLost ? error : errors.doubt({...stored({}), errorCode: code, errorMessage: message}, error);
  }

  /** In the transaction of tx, of the intent in whose attempt this is, unless scope and key say otherwise. Resolves to the event's id. */
  async emit(tx, topic, payload, options = {}) {
    return within(tx, contract.emit(topic, payload, this.#caused(tx, options)));
  }

  /** As emit; the payload is bytes with a content type of the application's, such as Avro or Protobuf. */
  async emitBytes(tx, topic, payload, contentType, options = {}) {
    return within(tx, contract.emitBytes(topic, payload, contentType, this.#caused(tx, options)));
  }

  /** The options of an event, with whose it is. */
  #caused(tx, options) {
    const caused = intentOf(tx) ?? working.getStore();
    const or = (name) => (options[name] === undefined ? caused?.[name] : options[name]);
    const by = {scope: or('scope'), key: or('key'), tenant: or('tenant') ?? this.#tenant, traceparent: options.traceparent ?? traceparent()};
    return {...options, ...by};
  }

  /** In the consumer's own transaction: 'process' or 'duplicate'. */
  async receive(tx, consumer, message, payload, options = {}) {
    const {scope, key, request, ...more} = this.#message(consumer, message, payload, options);
    return within(tx, contract.receive(scope, key, request, more));
  }

  /** A message is an intent whose scope is the consumer. */
  #message(consumer, message, payload, options) {
    return this.#intent(nameOf(consumer, 'consumer'), nameOf(message, 'message'), payload, options);
  }

  /** receive, the effect and COMMIT: acknowledge the message when it resolves. */
  consume(consumer, message, payload, effect, options = {}) {
    return traced('consume', consumer, async (verdict) => {
      const intent = this.#message(consumer, message, payload, options);
      const statement = contract.receive(intent.scope, intent.key, intent.request, intent);
      const said = await transact(this.#route, intent.tenant, async (session, begun) => {
        const [, {rows}] = await session.send([contract.begin(options.isolation), statement]);
        begun();
        if (rows[0][0] === 'process') await effect(lent(session, {...intent, key: contract.keyOfMessage(intent.key)}));
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
    return express(this, this.#route, options, this.#logger);
  }

  fastify(options) {
    return fastify(this, this.#route, options, this.#logger);
  }

  http(options, handler) {
    return http(this, this.#route, options, handler, this.#logger);
  }

  /** What run, claim and effect throw, as the gateway would answer it: {status, headers, body}. undefined: it is the application's own to answer. */
  answerOf(error, {problemBase} = {}) {
    return answerOf(error, {problemBase: checkBase(problemBase), logger: this.#logger});
  }

  /** The same for Express, behind the routes: app.use(once.problems()). */
  problems(options) {
    checkBase(options?.problemBase);
    return (error, _req, res, next) => {
      const answer = res.headersSent ? undefined : this.answerOf(error, options);
      if (!answer) return void next(error);
      // What others have set for every answer, as for CORS, stays.
      send(res, answer, headersOf(res));
    };
  }
}

/** What a replay will give. */
function stored(answer, failed) {
  const [text, bytes] = contract.bodyOf(answer.body);
  return {
    status: answer.status ?? null, headers: answer.headers ?? null, body: bytes ? Buffer.from(bytes) : text === null ? null : Buffer.from(text),
    resultType: nameOf(answer.resultType, 'resultType'), resultId: nameOf(answer.resultId, 'resultId'), errorCode: failed?.code ?? null, errorMessage: failed?.message ?? null,
  };
}

const {OnceError, Mismatch, Active, InDoubt, Expired, SlotClosed, FinalFailure, OutcomeUnknown, LeaseLost} = errors;
/** For express.json({verify: rawBody}), where a parser comes before the middleware. */
const rawBody = (req, _res, body) => {
  req.rawBody = body;
};

module.exports = {Once, OnceError, Mismatch, Active, InDoubt, Expired, SlotClosed, FinalFailure, OutcomeUnknown, LeaseLost, Failed, NotDone, nodes, keyOf, keyOfHeader, rawBody};
