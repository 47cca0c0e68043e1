// SPDX-License-Identifier: PostgreSQL
// Answers that are not the handler's: replays, refusals, and what is said where an answer could not be stored. A refusal is logged at debug, a 5xx at error with its cause.
'use strict';

const errors = require('./errors');
const headers = require('./headers');
const {problem} = require('./problem');
const {VERDICTS} = require('./verdicts');

const TOO_LARGE = 'once.too_large';
const CLAIMED_IN_FRONT = 'A pgonce gateway in front of this service has claimed this key in the same scope: set the option gateway, or give the two different scopes.';
// Of a claim whose work may have been done, and is not stored.
const NOT_STORED = new Set(['outcome_unknown', 'lease_lost', 'completion_refused', 'failure_refused']);

/** A problem whose cause is in the log, under the name that the document gives the request. error: why. */
function logged(options, slug, error, more) {
  const answer = problem(slug, {base: options.problemBase, ...more});
  options.logger.error(`pgonce: problem=${slug} request=${answer.request}${options.scope ? ` scope=${options.scope}` : ''} ${errors.lineOf(error)}`);
  return answer;
}

/** A request that is refused before anything runs. */
function refusal(options, slug, more) {
  const answer = problem(slug, {base: options.problemBase, ...more});
  options.logger.debug?.(`pgonce: problem=${slug} request=${answer.request}${options.scope ? ` scope=${options.scope}` : ''}`);
  return answer;
}

/** A stored outcome as an answer. */
function replay(options, {verdict, answer, traceparent}) {
  const {problemBase: base} = options;
  if (!['replay', 'fail'].includes(VERDICTS[verdict]?.then)) throw new Error(`pgonce: once.try_start answered ${verdict}`);
  if (answer.resultType === TOO_LARGE) return problem('too-large', {base, traceparent});
  const pairs = headers.decode(answer.headers);
  if (answer.status === null || answer.status < 200 || answer.status > 599 || !pairs) return problem('no-answer', {base, traceparent});
  const own = [['Idempotency-Replayed', 'true'], ...(traceparent ? [['Idempotency-Traceparent', traceparent]] : [])];
  return {status: answer.status, headers: [...pairs, ...own], body: answer.body ?? Buffer.alloc(0)};
}

function isMultipart(intent) {
  return /^multipart\//i.test(intent.request.http.contentType);
}

/** answer: what is stored with the doubt. */
function whyDoubted(answer) {
  return answer?.status ? `The service answered ${answer.status}, which does not say whether the effect happened.` : undefined;
}

/** What start has said instead of proceed, as an answer. */
function concluded(options, intent, said) {
  const {then, told} = VERDICTS[said.verdict] ?? {};
  if (then !== 'wait' && then !== 'refuse') return replay(options, said);
  const slug = errors.problemOf(told);
  if (intent.claimedInFront && (slug === 'active' || slug === 'mismatch')) {
    options.logger.error(`pgonce: problem=${slug} scope=${options.scope} ${CLAIMED_IN_FRONT}`);
    return refusal(options, slug, {more: CLAIMED_IN_FRONT});
  }
  const more = slug === 'mismatch' && isMultipart(intent)
    ? 'A multipart body that is built again has a new boundary, so it is another request: send the same bytes as the first time.'
    : slug === 'in-doubt' ? whyDoubted(said.answer) : undefined;
  return refusal(options, slug, {more, traceparent: slug === 'mismatch' ? undefined : said.traceparent});
}

/** Nothing was done. */
function unavailable(options, error) {
  const slug = error instanceof errors.OnceError ? errors.problemOf(error.code) : undefined;
  if (slug !== 'key-malformed' && slug !== 'refused') return logged(options, 'unavailable', error);
  return refusal(options, slug, {more: slug === 'key-malformed' ? error.message : undefined});
}

/** What a call or a claim throws, as an answer; undefined where that is for the application to say: its own errors, and mistakes in its use of this client. */
function answerOf(error, options) {
  if (error instanceof errors.NotDone) return logged(options, 'unreached', error);
  if (!(error instanceof errors.OnceError)) return undefined;
  if (error.problem) return refusal(options, error.problem.slug, {more: error.problem.more});
  if (error instanceof errors.FinalFailure && error.answer) {
    const answer = replay(options, {verdict: 'final_failure', answer: error.answer, traceparent: error.traceparent});
    return {...answer, headers: answer.headers.filter(([name]) => error.replayed || name !== 'Idempotency-Replayed')};
  }
  if (error instanceof errors.InDoubt && error.cause !== undefined) return logged(options, 'in-doubt', error.cause);
  const slug = errors.problemOf(error.code);
  if (slug) return refusal(options, slug, {more: slug === 'in-doubt' ? whyDoubted(error.answer) : slug === 'key-malformed' ? error.message : undefined, traceparent: error.traceparent});
  if (NOT_STORED.has(error.code)) return logged(options, 'not-stored', error);
  return error.status === 500 ? undefined : unavailable(options, error);
}

/** An answer for a mistake of the application, as text for its developers. Nothing was done. */
function broken({logger}, message) {
  logger.error(`pgonce: ${message}`);
  const document = {type: 'about:blank', title: 'Internal Server Error', status: 500, detail: message};
  return {status: 500, headers: [['Content-Type', 'application/problem+json'], ['Cache-Control', 'no-store']], body: Buffer.from(JSON.stringify(document))};
}

module.exports = {TOO_LARGE, answerOf, broken, concluded, logged, refusal, unavailable};
