// SPDX-License-Identifier: PostgreSQL
// One attempt on one connection of the caller's pool, and the loop around attempts. The outcome of an attempt is never guessed: after a lost COMMIT the next
// attempt's start asks. It cannot be told "proceed" while the old backend lives, since that one holds the intent's lock until its commit is visible.
'use strict';

const contract = require('./contract');
const errors = require('./errors');
const salts = require('./fingerprint');
const {lent} = require('./lent');
const reasons = require('./reasons');
const {Session} = require('./session');

// spec: retries
const BACKOFF_FIRST_MS = 5; // the longest first pause
const BACKOFF_MAX_MS = 1000; // the longest pause
const DEADLINE_MS = 30000; // the default deadline of a call
// end of spec
// Besides P4012: the transaction has not started this intent, or has no such savepoint. The effect has ended the one that had.
const ELSEWHERE = new Set(['P4014', 'P4015', '25P01', '3B001']);
const KEPT_ALWAYS = 8192; // bytes of a body, and characters of headers, that every scope keeps: below it, P4060 cannot come

/** An effect's transaction that has begun: start said proceed. */
class Attempt {
  constructor(session, intent) {
    this.session = session;
    this.intent = intent;
    this.tx = lent(session, intent);
    this.commitSent = false;
    this.elsewhere = false;
  }

  /**
   * {attempt} where the effect may run, else {verdict, answer, traceparent} with the connection given back.
   * ms: the time limit for all of it, including the wait for a connection. gone(): has the client left?
   */
  static async begin(pool, intent, {isolation, ms, gone, trusted = true} = {}) {
    const begun = performance.now();
    const session = await Session.open(pool, {ms, gone});
    try {
      if (ms !== undefined) session.limit(ms - (performance.now() - begun), () => session.cut());
      const hashed = salts.hashedOf(intent.request);
      const salt = hashed && trusted ? salts.saltOf(session.client, intent.tenant) : undefined;
      const known = salt && salts.fingerprintOf(salt, hashed);
      const [, {rows}] = await session.send([contract.begin(isolation), contract.tryStart(intent, hashed, known), contract.SAVEPOINT]);
      const {verdict, traceparent, answer, computed} = contract.started(rows[0]);
      if (verdict === 'mismatch' && known) {
        // Or it is the salt that is another: the contract was installed anew.
        salts.forget(session.client);
        await session.close();
        return Attempt.begin(pool, intent, {isolation, ms, gone, trusted: false});
      }
      if (hashed && !known) salts.remember(session.client, intent.tenant, computed);
      const print = known ?? (hashed ? salts.fingerprintOf(computed, hashed) : computed);
      if (verdict === 'proceed') return {attempt: new Attempt(session, {...intent, print, traceparent: traceparent ?? intent.traceparent})};
      if (verdict === 'in_doubt') {
        const [seen] = await session.send([contract.peekStatus(intent)]);
        answer.status = seen.rows[0][0] === null ? null : Number(seen.rows[0][0]);
      }
      await session.close();
      return {verdict, answer, traceparent};
    } catch (error) {
      await session.close();
      throw marked(error, {lost: session.lost});
    }
  }

  /** The last statements, and behind them those after; otherwise: what is sent in place of last where the scope keeps less than the answer. */
  async sendOutcome(last, otherwise, after = []) {
    const {session} = this;
    session.over = true;
    if (session.lost) throw errors.ofConnection();
    this.commitSent = after.includes(contract.COMMIT);
    const statements = session.otherRole ? [contract.RESET_ROLE, ...last] : last;
    try {
      return await session.send([...statements, ...after]);
    } catch (error) {
      if (ELSEWHERE.has(error.code)) throw errors.ofSqlstate('P4012');
      if (!otherwise || error.code !== 'P4060') throw error;
      return session.send([...otherwise, ...after]);
    }
  }

  /** The outcome and COMMIT in one round trip. */
  async commit(last, otherwise) {
    const {session} = this;
    try {
      const results = await this.sendOutcome(last, otherwise, [contract.COMMIT]);
      session.open = false;
      if (results.at(-1).tag !== 'COMMIT') throw errors.swallowed();
    } catch (error) {
      if (error.code === '25P02') throw await this.threw(errors.swallowed());
      throw marked(error, {lost: session.lost, unanswered: this.commitSent && session.lost});
    } finally {
      await session.close();
    }
  }

  /** Of an error of commit: was COMMIT sent, and not answered? */
  static isUnanswered(error) {
    return markOf(error).unanswered === true;
  }

  static isLost(error) {
    return markOf(error).lost === true;
  }

  /** smaller: what is stored where the scope does not keep so large an answer; without it that is an error. */
  finish(answer, smaller) {
    return this.#store([], answer, smaller);
  }

  /** Failed for good: the effect is taken back, and the answer stays. */
  fail(failed, answer, smaller) {
    return this.#store([contract.ROLLBACK_TO], answer, smaller, failed);
  }

  async #store(before, answer, smaller, failed) {
    let finish;
    try {
      finish = contract.finish(this.intent, answer, failed);
    } catch (error) {
      throw await this.threw(error); // it is no JSON
    }
    const kept = smaller && answer !== smaller && answer.body.length <= KEPT_ALWAYS && JSON.stringify(answer.headers ?? null).length <= KEPT_ALWAYS;
    if (!smaller || answer === smaller || kept) return this.commit([...before, finish]);
    return this.commit([...before, contract.SAVEPOINT_STORE, finish], [contract.ROLLBACK_TO_STORE, contract.finish(this.intent, smaller, failed)]);
  }

  /** The effect is rolled back, and its outcome elsewhere is unknown. */
  doubt(answer) {
    return this.commit([contract.ROLLBACK_TO, contract.doubt(this.intent, answer)]);
  }

  /** Nothing happened, unless the effect has ended the transaction: then it is elsewhere. A statement that still runs on the connection is stopped. */
  async abandon() {
    this.session.over = true;
    this.session.cancel();
    if (ELSEWHERE.has(await this.session.close(contract.ROLLBACK_TO))) this.elsewhere = true;
  }

  /** The effect threw: nothing happened. Returns the error to throw, which tells the loop whether the connection was lost. */
  async threw(error) {
    await this.abandon();
    if (this.elsewhere) return Object.assign(errors.ofSqlstate('P4012'), {cause: error});
    return this.session.lost ? marked(errors.ofConnection(error), {lost: true}) : error;
  }
}

/** What the loop has to know of an error, beside it: an error of the application may be frozen, or no object. */
const marks = new WeakMap();

function marked(error, what) {
  if (typeof error === 'object' && error !== null) marks.set(error, what);
  return error;
}

const markOf = (error) => (typeof error === 'object' && error !== null && marks.get(error)) || {};

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, ms);
    signal?.addEventListener('abort', stop, {once: true});
  });
}

/** Exponential, capped, full jitter. */
const backoff = (tries) => Math.random() * Math.min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS * 2 ** tries);

/**
 * attempt(settled) until it returns, or throws what another attempt cannot change. It returns {verdict} for what start has said instead of proceed, and calls
 * settled() where start has said proceed: then an earlier COMMIT did not happen.
 * The signal is looked at between attempts alone: never between an effect and its outcome.
 * isReport: its work is done, so it is also repeated while the tenant's slot is closed, which is open on no node while it moves.
 */
async function repeat(attempt, {deadlineMs = DEADLINE_MS, waitMs = 0, signal, isReport = false} = {}) {
  const begun = Date.now();
  // An earlier attempt's COMMIT is unanswered: until start has spoken, the outcome is unknown.
  let unanswered = false;
  const settled = () => {
    unanswered = false;
  };
  // A connection of this call was lost: its backend may still run, and "active" may mean this call.
  let lostBefore = false;
  for (let tries = 0; ; tries++) {
    let failure;
    try {
      if (!unanswered) signal?.throwIfAborted();
      const said = await attempt(settled);
      if (said.verdict !== 'processing_active') return said;
      if (!(unanswered || lostBefore || Date.now() - begun < waitMs)) return said;
      failure = errors.ofVerdict(said);
    } catch (error) {
      const mark = markOf(error);
      lostBefore ||= mark.lost === true;
      unanswered ||= mark.unanswered === true;
      const known = errors.ofDriver(error);
      const away = known instanceof errors.OnceError && known.code === 'connection';
      if (away && !mark.lost && !unanswered && !lostBefore) throw known;
      const isMoving = isReport && known instanceof errors.SlotClosed;
      if (!away && !mark.lost && !errors.isSerialization(error) && !isMoving) {
        // Only an answer of start settles what became of an earlier COMMIT; a node that refuses the tenant gives none, nor does a database without the contract.
        const isAnswer = known instanceof errors.OnceError && !(known instanceof errors.SlotClosed) && known.code !== 'contract';
        throw unanswered && !isAnswer ? errors.unknown(known) : known;
      }
      failure = mark.lost && !away ? errors.ofConnection(error) : known;
    }
    const ms = backoff(tries);
    const limit = failure.code === 'active' && !unanswered && !lostBefore ? waitMs : deadlineMs;
    if (Date.now() + ms >= begun + limit) {
      if (unanswered) throw errors.unknown(failure);
      if (failure.code === 'active') return {verdict: 'processing_active', traceparent: failure.traceparent};
      throw failure;
    }
    await pause(ms, unanswered ? undefined : signal);
  }
}

/** What start has said, as what the caller is to get: the stored answer, or an error. */
function conclude(said) {
  if (said.verdict === 'replay_success') return said.answer;
  throw errors.ofVerdict(said);
}

/** A transaction around work(session, begun) at the tenant's node, again after 40001 and 40P01. begun: start or receive has spoken, and the effect begins. */
function transact(route, tenant, work, options = {}) {
  return repeat((settled) => route.at(tenant, async (pool, begun) => {
    const session = await Session.open(pool);
    let commitSent = false;
    try {
      const result = await work(session, () => {
        settled();
        begun();
      });
      session.over = true;
      if (session.lost) throw errors.ofConnection();
      commitSent = true;
      const [{tag}] = await session.send([contract.COMMIT]);
      session.open = false;
      await session.close();
      if (tag !== 'COMMIT') throw errors.swallowed();
      return result;
    } catch (error) {
      await session.close();
      throw session.lost ? marked(errors.ofConnection(error), {lost: true, unanswered: commitSent}) : error;
    }
  }), options);
}

/** The effect has ended its transaction itself. It is unknown whether its work was committed, so it must not run again. */
const leaveInDoubt = (route, intent, options) => transact(route, intent.tenant, (session) => session.send([contract.begin(), contract.doubt(intent, {}, reasons.ENDED)]), options);

module.exports = {Attempt, leaveInDoubt, repeat, conclude, transact, marked, pause, backoff, DEADLINE_MS};
