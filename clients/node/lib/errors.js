// SPDX-License-Identifier: PostgreSQL
// What the client throws. Branch on `code` (the names of once.errors()), never on text. No message holds a key: what the server says of the intent is left out.
'use strict';

const {VERDICTS} = require('./verdicts');

class OnceError extends Error {
  /** status: what the gateway answers for it. retryable: may the same call be made again as it is. */
  constructor(code, message, {sqlstate = null, status = 500, retryable = false, cause} = {}) {
    super(message, cause === undefined ? undefined : {cause});
    this.name = this.constructor.name;
    this.code = code;
    this.sqlstate = sqlstate;
    this.status = status;
    this.retryable = retryable;
  }
}

class Mismatch extends OnceError {}
class Active extends OnceError {}
class InDoubt extends OnceError {}
class Expired extends OnceError {}
/** This node does not serve the tenant now. slot, epoch: the tenant's slot, and its epoch at this node. */
class SlotClosed extends OnceError {
  slot;
  epoch;
}
/** The intent failed for good; `answer` is what is stored. replayed: an earlier attempt did. */
class FinalFailure extends OnceError {}
/** COMMIT was sent, and the database cannot be asked what became of it. Ask again with the same key. */
class OutcomeUnknown extends OnceError {}
/** The lease is somebody else's, or could not be renewed in time. The reason of a claim's `signal`. */
class LeaseLost extends OnceError {}

/** Thrown by an effect: it failed for good, and every retry gets this answer. The effect is rolled back. */
class Failed extends Error {
  constructor(code, message, answer = {}) {
    super(message);
    this.name = 'Failed';
    this.code = code;
    this.answer = answer;
  }
}

/** Thrown by the function of once.effect: certainly nothing was done, the next attempt may run. */
class NotDone extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = 'NotDone';
  }
}

/** The client left before a connection was free. */
class Left extends Error {}

// Of the contract: [code, status, retryable, message, problem]
const KNOWN = {
  // spec: errors
  P4000: ['scope_required', 403, false, 'a scope of 1 to 255 characters is required', 'refused'],
  P4001: ['key_malformed', 400, false, 'the key is missing or malformed', 'key-malformed'],
  P4002: ['mismatch', 422, false, 'the key was first used with another request', 'mismatch'],
  P4003: ['refused', 403, false, 'the fingerprint or the tenant is refused', 'refused'],
  P4010: ['completion_refused', 409, false, 'the attempt no longer holds the intent: discard its result'],
  P4011: ['failure_refused', 409, false, 'the attempt no longer holds the intent: discard its result'],
  P4012: ['not_started', 500, false, 'the transaction has not started the intent: did the effect end it?'],
  P4013: ['unfinished', 500, false, 'the transaction has started an intent and not finished it: nothing was committed'],
  P4014: ['already_started', 500, false, 'this transaction has started this intent already'],
  P4015: ['another_fingerprint', 500, false, 'this transaction has started the intent with another fingerprint'],
  P4020: ['already_finished', 409, false, 'the intent is finished and has an outcome', 'no-answer'],
  P4029: ['active', 409, true, 'another attempt of this intent is running', 'active'],
  P4030: ['final_failure', 409, false, 'the intent failed for good', 'no-answer'],
  P4031: ['in_doubt', 409, false, 'the outcome of this intent is unknown', 'in-doubt'],
  P4041: ['expired', 409, false, 'the key is older than what is remembered', 'expired'],
  P4050: ['message_mismatch', 422, false, 'the message id was first used with another payload'],
  P4051: ['event_mismatch', 422, false, 'this intent has already emitted this event with another payload'],
  P4060: ['too_large', 500, false, 'the outcome or the event is too large'],
  P4070: ['resolution_refused', 409, false, 'the decision is refused'],
  P4097: ['slot_closed', 503, true, 'this node does not serve the tenant now'],
  P4098: ['partition_missing', 503, true, 'the partition for this day is missing'],
  P4099: ['unknown_state', 503, false, 'the intent is in a state that this function does not know'],
  // end of spec
};
const CLASSES = {P4002: Mismatch, P4029: Active, P4030: FinalFailure, P4031: InDoubt, P4041: Expired, P4050: Mismatch, P4051: Mismatch, P4097: SlotClosed};

/** May the same attempt succeed the next time? again: a statement of pgonce was not prepared, although it should have been. */
const isSerialization = (error) => error?.code === '40001' || error?.code === '40P01' || error?.again === true;

/** A FATAL one ends the session, and may come after COMMIT took effect (a server that is stopped while it waits for its standby). */
const endsTheSession = (error) =>
  error?.severity === 'FATAL' || error?.severity === 'PANIC' || error?.code === '40003' || /^08...$/.test(error?.code ?? '');

/** Did the server answer this? Else the connection was lost, or never made. */
const isAnswer = (error) => /^[0-9A-Z]{5}$/.test(error?.code ?? '') && error?.severity !== undefined && !endsTheSession(error);

function ofSqlstate(sqlstate, said) {
  const [code, status, retryable, message] = KNOWN[sqlstate];
  return new (CLASSES[sqlstate] ?? OnceError)(code, said ?? message, {sqlstate, status, retryable});
}

const PROBLEMS = Object.fromEntries(Object.values(KNOWN).map(([code, , , , problem]) => [code, problem]));

/** The problem that answers an error of this code, or undefined. */
const problemOf = (code) => PROBLEMS[code];

/** answer: what is stored. */
function final(answer, {replayed, cause}) {
  const error = ofSqlstate('P4030');
  if (cause) error.cause = cause;
  return Object.assign(error, {answer, replayed, status: answer.status ?? error.status});
}

/** answer: why. cause: set if this call itself lost the outcome. */
const doubt = (answer, cause) => Object.assign(ofSqlstate('P4031'), {answer}, cause === undefined ? undefined : {cause});

/** The error of a verdict that lets nothing run. traceparent: of the first attempt, only for callers whose request matches: a mismatch does not get it. */
function ofVerdict({verdict, answer, traceparent}) {
  const sqlstate = VERDICTS[verdict]?.sqlstate;
  const error = verdict === 'final_failure' ? final(answer, {replayed: true}) : verdict === 'in_doubt' ? doubt(answer)
    : ofSqlstate(sqlstate ?? 'P4099', sqlstate ? undefined : 'the contract has given a verdict that is not known here');
  return verdict === 'mismatch' ? error : Object.assign(error, {traceparent: traceparent ?? undefined});
}

const REASON_MAX = 1000; // characters

/** Why an attempt ended, as it is stored and logged: {code, message}. An error's text is its own and its cause's. */
function reasonOf(error) {
  const {code, name, message, cause} = error instanceof Error ? error : {message: String(error)};
  const texts = [message, cause?.message ?? cause?.code].filter((text) => typeof text === 'string' && text !== '');
  return {
    code: String(code ?? cause?.code ?? name ?? 'error').slice(0, 100).replaceAll('\0', '?'),
    message: texts.join(': ').slice(0, REASON_MAX).replaceAll('\0', '?') || null,
  };
}

/** The same in one line of a log. */
function lineOf(error) {
  const {code, message} = reasonOf(error);
  return `code=${code} error=${JSON.stringify(message)}`;
}

/** {slot, epoch} at the end of the detail of P4097, behind the names of the intent. */
function slotIn(detail) {
  const [, slot, epoch] = /; slot=(\d+) epoch=(\d+)$/.exec(detail ?? '') ?? [];
  return slot === undefined ? {} : {slot: Number(slot), epoch: Number(epoch)};
}

/** The error for a driver's error; an error that is not the contract's stays as it is. */
function ofDriver(error) {
  if (error instanceof OnceError) return error;
  if (KNOWN[error?.code] && error.severity !== undefined) {
    const known = ofSqlstate(error.code, error.message.replace(/^pgonce: /, ''));
    return known instanceof SlotClosed ? Object.assign(known, slotIn(error.detail)) : known;
  }
  if (isSerialization(error)) return new OnceError('serialization', 'another transaction was in the way until the deadline', {sqlstate: error.code, status: 503, retryable: true});
  return error;
}

/** For the error of a statement of this client's, before anything of the application ran: a missing schema or function can only be the contract's. */
function ofContract(error) {
  if (error?.severity === undefined || !['3F000', '42883'].includes(error.code)) return error;
  return new OnceError('contract', 'the database has no contract, or one that this client does not know: run pgonce init, or pgonce.sql', {sqlstate: error.code, status: 503, cause: error});
}

/** The database could not be reached, or was lost before COMMIT was sent: nothing was done. */
const ofConnection = (cause) => new OnceError('connection', 'the database cannot be reached; nothing was done', {status: 503, retryable: true, cause});

const unknown = (cause) =>
  new OutcomeUnknown('outcome_unknown', 'COMMIT was sent, and what became of it cannot be learnt now; ask again with the same key', {status: 503, retryable: true, cause});

/** Of a pool's error: did its own time limit end the wait? */
const isExhausted = (pool, error) => pool.options?.connectionTimeoutMillis > 0 && /^timeout exceeded/.test(error?.message);

/** Of a pool that has nothing to give, why; else undefined. */
const fullness = (pool) => (pool.totalCount >= pool.options?.max && pool.idleCount === 0
  ? `the pool of ${pool.options.max} is full; a handler that takes a second one from the same pool can cause this; see mode 'lease'` : undefined);

/** No connection within ms. Nothing was done. */
function noConnection(pool, ms) {
  const full = fullness(pool);
  const why = full ? `no connection was free within ${ms} ms: ${full}` : `no connection could be made within ${ms} ms`;
  return new OnceError('connection', `${why}; nothing was done`, {status: 503, retryable: true});
}

/** Of an error at COMMIT or just before it: is it the application's own, as of a deferred constraint? */
const isApplications = (error) => isAnswer(error) && !KNOWN[error.code] && !/^(?:08|40|53|57|58|XX)/.test(error.code);

const swallowed = () =>
  new OnceError('swallowed', 'a statement of the effect failed and the effect went on: COMMIT would have rolled back, so nothing was committed. Let the error out, or use a savepoint');

module.exports = {
  OnceError, Mismatch, Active, InDoubt, Expired, SlotClosed, FinalFailure, OutcomeUnknown, LeaseLost, Failed, Left, NotDone,
  final, doubt, ofVerdict, problemOf, reasonOf, lineOf, ofSqlstate, ofDriver, ofContract, ofConnection, unknown, swallowed, isSerialization, isAnswer, isApplications, isExhausted, fullness, noConnection, endsTheSession,
};
