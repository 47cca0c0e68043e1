// SPDX-License-Identifier: PostgreSQL
// One protected request in mode 'lease': a claim, the handler without a connection of pgonce, and its answer as the claim's outcome. Its effect is elsewhere and nothing takes
// it back, so answers are read as the gateway reads those of a service behind it. The guard says the same things as that of guard.js.
'use strict';

const {claim} = require('./claim');
const errors = require('./errors');
const {AS_IT_IS, ASK_MS, storable} = require('./guard');
const reasons = require('./reasons');
const {TOO_LARGE, broken, concluded, logged, unavailable} = require('./reply');
const {traced} = require('./trace');
const {verdictOf} = require('./verdicts');

const ASKS_AGAIN = {
  // spec: statuses-asking
  // Elsewhere: the header with which a status asks for the same request once more, so that nothing was done. A 4xx or a 503 asks with Retry-After.
  307: 'location',
  308: 'location',
  401: 'www-authenticate',
  407: 'proxy-authenticate',
  // end of spec
};
const ASKS_ALWAYS = new Set([
  // spec: statuses-asking-always
  // Elsewhere: HTTP itself says of these that the same request is sent again: over another connection (RFC 9110, 15.5.20), or after the handshake
  // (RFC 8470, 5.2).
  421, 425,
  // end of spec
]);

/** As the gateway: done, refused (for good), none, unknown. */
function effectOf({status, pairs, effect}) {
  const has = (name) => pairs.some(([each]) => each.toLowerCase() === name);
  const [word] = effect.map((each) => String(each).toLowerCase());
  if (effect.length === 1 && ['none', 'done', 'unknown'].includes(word)) return word;
  const again = status === 503 || (status >= 400 && status < 500) ? has('retry-after') : false;
  if (again || ASKS_ALWAYS.has(status) || has(ASKS_AGAIN[status])) return 'none';
  if (status === 408 || status < 200 || status >= 500) return 'unknown';
  return status >= 400 ? 'refused' : 'done';
}

function openLease(route, options, intent, gone) {
  return traced('http', options.scope, async (verdict) => {
    const until = performance.now() + options.handlerMs;
    try {
      const held = await claim(route, intent, {takeover: false, waitMs: options.waitMs, deadlineMs: ASK_MS, wait: {ms: options.handlerMs, gone}});
      verdict(held.replayed ? 'replay' : 'proceed');
      if (held.replayed) return {reply: concluded(options, intent, {verdict: 'replay_success', answer: held, traceparent: held.traceparent})};
      return {guard: new LeaseGuard(options, intent, held, until - performance.now())};
    } catch (error) {
      verdict(error instanceof errors.OnceError ? error.code : 'error');
      if (error instanceof errors.Left) return {left: true};
      const told = verdictOf(error.code);
      if (told) return {reply: concluded(options, intent, {verdict: told, answer: error.answer, traceparent: error.traceparent})};
      return {reply: unavailable(options, error)};
    }
  });
}

class LeaseGuard {
  constructor(options, intent, held, ms) {
    this.options = options;
    this.intent = intent;
    this.held = held;
    this.ended = false;
    this.expired = () => {}; // Held
    this.timer = setTimeout(() => this.#expire(), Math.max(0, ms));
  }

  end(head, body) {
    return this.#report(() => this.#store(head, body));
  }

  stream(head) {
    return this.#report(() => this.#store(head, Buffer.alloc(0), {status: head.status, resultType: TOO_LARGE}));
  }

  #store(head, body, instead) {
    const {held} = this;
    const {status} = head;
    const {stored, large} = storable(this.options, head, body);
    const smaller = (report) => report(instead ?? stored).catch((error) => {
      if (errors.ofDriver(error).sqlstate !== 'P4060') throw error;
      return report(large);
    });
    switch (effectOf(head)) {
      case 'done': return smaller((answer) => held.complete(answer));
      // once.fail has no result_type: what is too large to keep is remembered as done.
      case 'refused': return smaller((answer) => (answer.resultType ? held.complete(answer) : held.fail(false, {...reasons.REFUSED, answer})));
      case 'none': return held.fail(true, {...reasons.AGAIN, answer: status >= 200 && status <= 599 ? {status} : {}});
      default: return held.fail(null, {...reasons.UNCLEAR, answer: status >= 200 && status <= 599 ? {status} : {}});
    }
  }

  async #report(report) {
    this.#over();
    try {
      await report();
      return AS_IT_IS;
    } catch (error) {
      return {answer: logged(this.options, 'not-stored', errors.ofDriver(error))};
    }
  }

  #over() {
    this.ended = true;
    clearTimeout(this.timer);
  }

  /** The outcome is unknown. */
  async #doubt({code}, message) {
    this.#over();
    await this.held.fail(null, {code, message}).catch((error) => this.log(errors.ofDriver(error)));
  }

  async refuse(message, reason = reasons.NOT_KEPT) {
    await this.#doubt(reason, message);
    return {answer: broken(this.options, message)};
  }

  unused() {
    return this.#report(() => this.held.release());
  }

  broken() {
    return this.#doubt(reasons.NO_ANSWER, reasons.NO_ANSWER.message);
  }

  #expire() {
    const why = `the handler has not answered within ${this.options.handlerMs} ms`;
    this.expired(this.#doubt(reasons.NO_ANSWER, why).then(() => ({answer: logged(this.options, 'in-doubt', new Error(why))})));
  }

  log(error) {
    this.options.logger.error(`pgonce: ${errors.lineOf(error)}`);
  }
}

module.exports = {effectOf, openLease};
