// SPDX-License-Identifier: PostgreSQL
// One protected request that a gateway in front has claimed, for the same intent (docs/reference/gateway.md): its claim is finished here, in the transaction of the effect.
'use strict';

const contract = require('./contract');
const errors = require('./errors');
const {ASK_MS, Guard} = require('./guard');
const reasons = require('./reasons');
const {logged, refusal, unavailable} = require('./reply');
const {Session} = require('./session');
const {traced} = require('./trace');
const {Attempt, marked, repeat} = require('./transaction');

/** An effect's transaction under a claim. The contract looks at its fence when the outcome is stored. */
class HandedAttempt extends Attempt {
  static async begin(route, intent, {isolation, ms, gone}) {
    const begun = performance.now();
    const session = await Session.open(await route.poolOf(intent.tenant), {ms, gone});
    try {
      session.limit(ms - (performance.now() - begun), () => session.cut());
      await session.send([contract.begin(isolation), contract.SAVEPOINT]);
      return new HandedAttempt(session, intent);
    } catch (error) {
      await session.close();
      throw marked(error, {lost: session.lost});
    }
  }

  /** COMMIT only where this call has stored the outcome. Else another run under the same fence has had its effect, even where its answer is the same. */
  async commit(last, otherwise) {
    const {session} = this;
    try {
      const results = await this.sendOutcome(last, otherwise);
      if (results.at(-1).rows[0][0] !== 't') throw errors.ofSqlstate('P4010');
    } catch (error) {
      if (error.code === '25P02') throw await this.threw(errors.swallowed());
      await session.close();
      throw marked(error, {lost: session.lost});
    }
    await super.commit([]);
  }
}

/** As open of guard.js. */
function openHandoff(route, options, intent, gone) {
  return traced('http', options.scope, async (verdict) => {
    try {
      const attempt = await HandedAttempt.begin(route, intent, {isolation: options.isolation, ms: options.handlerMs, gone});
      verdict('proceed');
      return {guard: new HandedGuard(route, options, attempt)};
    } catch (error) {
      verdict(error instanceof errors.OnceError ? error.code : 'error');
      return error instanceof errors.Left ? {left: true} : {reply: unavailable(options, errors.ofDriver(error))};
    }
  });
}

/** Of what is not stored here the gateway is told what it means. */
class HandedGuard extends Guard {
  async undone() {
    await super.undone();
    return {effect: 'none'};
  }

  async doubt() {
    await this.attempt.abandon();
    return {effect: 'unknown'};
  }

  fault(message) {
    const answer = super.fault(message);
    return {...answer, headers: [...answer.headers, ['Once-Effect', 'none']]};
  }

  async unstored(error) {
    const {code} = errors.ofDriver(error);
    if (code === 'not_started') return {answer: logged(this.options, 'in-doubt', error)}; // which the gateway heeds
    if (code === 'completion_refused' || code === 'failure_refused') return {answer: refusal(this.options, 'active')};
    if (!Attempt.isUnanswered(error)) return super.unstored(error);
    try {
      await this.#free();
      return {answer: unavailable(this.options, errors.ofConnection(error))};
    } catch (unsaid) { // the outcome is stored, and the gateway sends it; or it is unknown, and the intent is in doubt
      this.options.logger.debug?.(`pgonce: the gateway's claim is left to it: scope=${this.options.scope} ${errors.lineOf(errors.ofDriver(unsaid))}`);
      return {answer: logged(this.options, 'not-stored', error)};
    }
  }

  /** Nothing was done: that is stored under the same fence. It waits for a COMMIT that is under way, and one that comes later finds the claim taken. */
  #free() {
    const until = performance.now() + ASK_MS;
    const left = () => Math.max(1, until - performance.now());
    return repeat(() => this.route.at(this.intent.tenant, async (pool) => {
      const session = await Session.open(pool, {ms: left()});
      session.limit(left(), () => session.cut());
      session.open = false;
      try {
        return await session.send([contract.fail(this.intent, this.intent.fence, true, reasons.COMMIT_LOST)]);
      } catch (error) {
        throw marked(error, {lost: session.lost});
      } finally {
        await session.close();
      }
    }), {deadlineMs: ASK_MS, isReport: true});
  }
}

module.exports = {openHandoff};
