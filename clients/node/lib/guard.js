// SPDX-License-Identifier: PostgreSQL
// One protected request in mode 'transaction', without a framework: what the gateway decides about requests and answers, here in one transaction with the effect.
// What the guard says of an answer: {} is "send it as it is", {answer} "send this one", {error} "it is the application's error".
'use strict';

const errors = require('./errors');
const headers = require('./headers');
const reasons = require('./reasons');
const {TOO_LARGE, broken, concluded, logged, unavailable} = require('./reply');
const {traced} = require('./trace');
const {Attempt, leaveInDoubt, repeat} = require('./transaction');

const ASK_MS = 5000; // as the gateway's once_timeout
const REFUSALS = new Set([
  // spec: statuses-rolled-back
  // In a transaction of the client's. By HTTP nothing was done, and the same request may well be answered otherwise soon. So is a 4xx with
  // Retry-After, each 5xx, and what is no final status of HTTP (below 200, above 599).
  307, 308, 401, 403, 407, 408, 409, 421, 423, 425, 429,
  // end of spec
]);
const AS_IT_IS = {};

/** Opens the request's transaction: {guard}, or {reply} if the handler must not be called; {left}: the client has left. */
function open(route, options, intent, gone) {
  return traced('http', options.scope, async (verdict) => {
    const until = performance.now() + options.handlerMs;
    try {
      const begin = () => route.at(intent.tenant, (pool) => Attempt.begin(pool, intent, {isolation: options.isolation, ms: until - performance.now(), gone}));
      const said = await repeat(begin, {waitMs: options.waitMs, deadlineMs: ASK_MS});
      verdict(said.attempt ? 'proceed' : said.verdict);
      return said.attempt ? {guard: new Guard(route, options, said.attempt)} : {reply: concluded(options, intent, said)};
    } catch (error) {
      verdict(error instanceof errors.OnceError ? error.code : 'error');
      return error instanceof errors.Left ? {left: true} : {reply: unavailable(options, error)};
    }
  });
}

/** What an answer says of its effect: done, refused (taken back, and stored), none, unknown. said: the values of Once-Effect. */
function effectOf({effect: said, status, pairs}) {
  const [word] = said.map((each) => String(each).toLowerCase());
  if (said.length === 1 && ['none', 'done', 'unknown'].includes(word)) return word;
  const later = status >= 400 && status < 500 && pairs.some(([name]) => name.toLowerCase() === 'retry-after');
  return later || REFUSALS.has(status) || status < 200 || status >= 500 ? 'none' : status >= 400 ? 'refused' : 'done';
}

/** What is stored of an answer: {stored, large}, with large in its place where it is more than may be kept. */
function storable(options, {status, pairs}, body) {
  const large = {status, resultType: TOO_LARGE};
  return {large, stored: body.length > options.responseMax ? large : {status, headers: headers.encode(pairs, options.listed), body}};
}

/** A request whose effect is under way. */
class Guard {
  constructor(route, options, attempt) {
    this.route = route;
    this.options = options;
    this.attempt = attempt;
    this.ended = false;
    this.expired = () => {}; // Held
    attempt.session.expired = () => this.#expire();
  }

  get intent() {
    return this.attempt.intent;
  }

  /** The handler's whole answer: decided, stored and committed. Never rejects, as none of these. */
  end(head, body) {
    return this.#conclude(() => this.#store(effectOf(head), head, body));
  }

  /** An answer without an end has begun: what was done until now is done, and remembered without an answer. */
  stream(head) {
    const {status} = head;
    return this.#conclude(() => (['none', 'unknown'].includes(effectOf(head)) ? this.undone() : this.attempt.finish({status, resultType: TOO_LARGE})));
  }

  async #conclude(store) {
    this.ended = true;
    try {
      return (await store()) ?? AS_IT_IS;
    } catch (error) {
      return this.unstored(error);
    }
  }

  #store(effect, head, body) {
    const {status} = head;
    if (effect === 'none') return this.undone();
    if (effect === 'unknown') return this.doubt(status >= 200 && status <= 599 ? {status} : {});
    const {stored, large} = storable(this.options, head, body);
    if (effect === 'done') return this.attempt.finish(stored, large);
    return this.attempt.fail(reasons.REFUSED, stored, large);
  }

  async undone() {
    await this.attempt.abandon();
    if (this.attempt.elsewhere) throw errors.ofSqlstate('P4012');
  }

  doubt(answer) {
    return this.attempt.doubt(answer);
  }

  /** An answer that is the application's fault. Nothing was done. */
  fault(message) {
    return broken(this.options, message);
  }

  async unstored(error) {
    const {options, intent} = this;
    const known = errors.ofDriver(error);
    if (known.code === 'swallowed') return {answer: this.fault(known.message)};
    if (known.code === 'not_started') return {answer: await this.#doubtful(known)};
    if (!Attempt.isUnanswered(error)) {
      if (!errors.isApplications(error)) return {answer: unavailable(options, errors.isSerialization(error) || Attempt.isLost(error) ? errors.ofConnection(error) : known)};
      options.logger.error(`pgonce: the database refused to commit what the handler did: scope=${options.scope} ${errors.lineOf(error)}`);
      return {error};
    }
    try {
      // COMMIT was sent: only start can tell what became of it, once the lost connection's backend is gone.
      const again = () => this.route.at(intent.tenant, (pool) => Attempt.begin(pool, intent, {ms: ASK_MS}));
      const said = await repeat(again, {waitMs: ASK_MS, deadlineMs: ASK_MS});
      if (!said.attempt) return {answer: said.verdict === 'processing_active' ? logged(options, 'not-stored', error) : concluded(options, intent, said)};
      await said.attempt.abandon();
      return {answer: unavailable(options, errors.ofConnection(error))};
    } catch (unanswered) {
      return {answer: logged(options, 'not-stored', unanswered)};
    }
  }

  /** The handler has ended the transaction itself. It is unknown whether its effect was committed, so the handler must not run again. */
  async #doubtful(error) {
    try {
      await leaveInDoubt(this.route, this.intent, {deadlineMs: ASK_MS});
      return logged(this.options, 'in-doubt', error);
    } catch (unstored) {
      this.log(unstored);
      return logged(this.options, 'not-stored', error);
    }
  }

  /** The handler's answer cannot be kept. Nothing was done. */
  async refuse(message) {
    return (await this.broken()) ?? {answer: this.fault(message)};
  }

  /** The handler was not called. */
  unused() {
    return this.broken();
  }

  /** There will be no answer, unless it is unknown what was done: then that is the answer. */
  async broken() {
    this.ended = true;
    try {
      await this.undone();
    } catch (error) {
      if (this.attempt.elsewhere) return this.unstored(error);
      this.log(error);
    }
    return undefined;
  }

  /** Time is up: what is being stored is asked for, what still runs is taken back. */
  #expire() {
    const {ended, options} = this;
    const {session} = this.attempt;
    if (ended) return void session.cut();
    const full = session.pool.waitingCount > 0 ? errors.fullness(session.pool) : undefined;
    const error = new Error(`the handler has not answered within ${options.handlerMs} ms`, full && {cause: new Error(`no connection was free for who waits: ${full}`)});
    this.expired(this.broken().then((doubtful) => doubtful ?? {answer: logged(options, 'timed-out', error)}));
  }

  log(error) {
    this.options.logger.error(`pgonce: ${errors.lineOf(error)}`);
  }
}

module.exports = {AS_IT_IS, ASK_MS, Guard, effectOf, open, storable};
