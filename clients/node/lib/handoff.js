// SPDX-License-Identifier: PostgreSQL
// One protected request that a gateway in front has claimed, for the same intent (docs/gateway.md): its claim is finished here, in the transaction of the effect.
'use strict';

const contract = require('./contract');
const errors = require('./errors');
const {Guard} = require('./guard');
const {logged, refusal, unavailable} = require('./reply');
const {Session} = require('./session');
const {traced} = require('./trace');
const {Attempt, marked} = require('./transaction');

/** An effect's transaction under a claim. The contract looks at its fence when the outcome is stored. */
class HandedAttempt extends Attempt {
  static async begin(pool, intent, {isolation, ms, gone}) {
    const begun = performance.now();
    const session = await Session.open(pool, {ms, gone});
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
      await session.close();
      throw error.code === '25P02' ? errors.swallowed() : marked(error, {lost: session.lost});
    }
    await super.commit([]);
  }
}

/** As open of guard.js. */
function openHandoff(pool, options, intent, gone) {
  return traced('http', options.scope, async (verdict) => {
    try {
      const attempt = await HandedAttempt.begin(pool, intent, {isolation: options.isolation, ms: options.handlerMs, gone});
      verdict('proceed');
      return {guard: new HandedGuard(pool, options, attempt)};
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
    if (code === 'completion_refused' || code === 'failure_refused') return {answer: refusal(this.options, 'active')};
    // The gateway asks the contract, which waits for a COMMIT that is still under way.
    if (Attempt.isUnanswered(error)) return {answer: logged(this.options, 'not-stored', error)};
    return super.unstored(error);
  }
}

module.exports = {openHandoff};
