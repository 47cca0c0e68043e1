// SPDX-License-Identifier: PostgreSQL
// A lease on an intent whose effect is elsewhere, renewed in the background until it is reported or lost.
'use strict';

const {randomUUID} = require('crypto');
const {hostname} = require('os');

const contract = require('./contract');
const errors = require('./errors');
const {Session} = require('./session');
const {marked, repeat} = require('./transaction');
const {mayRun, verdictOfLost} = require('./verdicts');

// spec: owner-max
const OWNER_CHARACTERS_MAX = 255;
// end of spec

/** One statement in a separate transaction, at the node of the tenant. */
function ask(route, tenant, statement, wait) {
  return route.at(tenant, async (pool) => {
    const session = await Session.open(pool, wait);
    session.open = false;
    try {
      const [{rows}] = await session.send([statement]);
      return rows[0];
    } catch (error) {
      throw marked(error, {lost: session.lost});
    } finally {
      await session.close();
    }
  });
}

class Claim {
  #route; #intent; #leaseMs; #timer; #until; #controller = new AbortController();

  constructor(route, intent, {verdict, fence, leaseMs, traceparent}, wanted, asked) {
    this.#route = route;
    this.#intent = intent;
    this.#leaseMs = wanted;
    this.replayed = false;
    this.verdict = verdict;
    this.fence = fence;
    this.traceparent = traceparent;
    this.#until = asked + leaseMs;
    this.#beat(leaseMs);
  }

  /** Aborted when the lease is lost, with a LeaseLost as its reason. */
  get signal() {
    return this.#controller.signal;
  }

  #ask(statement) {
    return ask(this.#route, this.#intent.tenant, statement);
  }

  #beat(leaseMs) {
    const every = Math.max(leaseMs / 3, 10);
    const beat = async () => {
      const asked = performance.now();
      // A network that says nothing lets no renewal end.
      const overdue = setTimeout(() => this.#lose('the lease could not be renewed in time'), Math.max(0, this.#until - asked)).unref();
      try {
        const [renewed] = await this.#ask(contract.renew(this.#intent, this.fence, this.#leaseMs));
        if (this.#timer === null) return;
        if (renewed !== 't') return this.#lose('somebody else holds this intent, or it is finished');
        this.#until = asked + leaseMs;
      } catch {
        if (this.#timer === null) return;
        // It may be renewed until the lease has passed; after that its state is unknown.
        if (performance.now() >= this.#until) return this.#lose('the lease could not be renewed in time');
      } finally {
        clearTimeout(overdue);
      }
      this.#timer = setTimeout(beat, Math.max(0, Math.min(every, this.#until - performance.now()))).unref();
    };
    this.#timer = setTimeout(beat, every).unref();
  }

  #lose(message) {
    this.#stop();
    this.#controller.abort(new errors.LeaseLost('lease_lost', message, {status: 503}));
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#timer = null;
  }

  /** A report that is sent again is found to be the same one: after a lost connection, and while the tenant's slot is closed. */
  async #repeated(statement) {
    const {value} = await repeat(async () => ({value: (await this.#ask(statement))[0] === 't'}), {isReport: true});
    return value;
  }

  #report(statement) {
    this.#stop();
    return this.#repeated(statement);
  }

  /** true: stored now; false: this very answer was stored already. */
  async complete(answer) {
    return this.#report(contract.complete(this.#intent, this.fence, contract.checkAnswer(answer)));
  }

  /** retryable true: certainly no effect; false: failed for good; null: the outcome is unknown. */
  async fail(retryable, failure = {}) {
    if (retryable !== true && retryable !== false && retryable !== null) throw new TypeError('pgonce: retryable is true, false or null (unknown)');
    return this.#report(contract.fail(this.#intent, this.fence, retryable, {...failure, answer: contract.checkAnswer(failure.answer)}));
  }

  /** Its work certainly never started. false: it is somebody else's. */
  release() {
    return this.#report(contract.release(this.#intent, this.fence));
  }

  renew() {
    return this.#repeated(contract.renew(this.#intent, this.fence, this.#leaseMs));
  }
}

/** The answer to a claim was lost: whether it is ours is asked for. undefined: it is not. */
async function ours(route, intent, owner, takeover) {
  const found = contract.peeked(await ask(route, intent.tenant, contract.peek(intent)));
  if (found.owner !== owner || found.state !== 'processing') return undefined;
  return {verdict: verdictOfLost(found.attempts, takeover), fence: found.fence, leaseMs: found.leaseMs};
}

async function claim(route, intent, options = {}) {
  // A name of this one claim, so that it is known again.
  const owner = `${options.owner ?? `${hostname()}/${process.pid}`}/${randomUUID()}`.slice(-OWNER_CHARACTERS_MAX);
  const {waitMs = 0, signal, deadlineMs, wait} = options;
  let lostBefore = false;
  let asked;
  const said = await repeat(async () => {
    asked = performance.now();
    try {
      const mine = lostBefore ? await ours(route, intent, owner, options.takeover) : undefined;
      if (mine) return mine;
      return contract.claimed(await ask(route, intent.tenant, contract.claim(intent, {...options, owner}), wait));
    } catch (error) {
      lostBefore = true;
      throw error;
    }
  }, {waitMs, signal, deadlineMs});
  if (said.verdict === 'replay_success') return {...said.answer, replayed: true};
  if (!mayRun(said.verdict)) throw errors.ofVerdict(said);
  return new Claim(route, intent, said, options.leaseMs, asked);
}

module.exports = {claim, Claim};
