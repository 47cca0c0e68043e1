// SPDX-License-Identifier: PostgreSQL
// One protected request, without a framework: what the gateway decides about requests and answers, here in one transaction with the effect.
'use strict';

const errors = require('./errors');
const headers = require('./headers');
const {keyOfHeader} = require('./key');
const {nameOf} = require('./contract');
const {problem} = require('./problem');
const {traced} = require('./trace');
const {Attempt, repeat} = require('./transaction');

const TOO_LARGE = 'once.too_large';
const HELD_MAX = 64 << 20; // the most that the contract stores of an answer
const ASK_MS = 5000; // as the gateway's once_timeout
// By what HTTP says of the status nothing was done; and the same request may well be answered otherwise soon.
const REFUSALS = new Set([307, 308, 401, 403, 407, 408, 409, 421, 423, 425, 429, 503]);
const TRACEPARENT = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;
const PROBLEM_OF = {key_malformed: 'key-malformed', refused: 'refused', scope_required: 'refused'};
const PROBLEM_OF_VERDICT = {active: 'active', in_doubt: 'in-doubt', mismatch: 'mismatch', expired: 'expired'};
// Of a claim whose work may have been done, and is not stored.
const NOT_STORED = new Set(['outcome_unknown', 'lease_lost', 'completion_refused', 'failure_refused']);

function checked(logger, {
  scope, tenant, required = true, waitMs = 0, responseMax = 1 << 20, bodyMax = 16 << 20, methods = ['POST', 'PATCH'], headers: list, canonicalJson = false,
  strictKeys = false, keyLength = 255, isolation, problemBase, ...rest
}) {
  const strange = Object.keys(rest)[0];
  if (strange) throw new TypeError(`pgonce: there is no option ${strange}`);
  if (typeof scope !== 'string' || scope === '') throw new TypeError('pgonce: a scope is needed: the kind of operation, such as orders');
  if (tenant !== false && typeof tenant !== 'function') {
    throw new TypeError('pgonce: tenant is a function of the request that says whose key it is, by what authentication has proved; false where there is but one caller');
  }
  return {scope, tenant, required, waitMs, responseMax: Math.min(responseMax, HELD_MAX), bodyMax, methods: new Set(methods), listed: headers.checkList(list), canonicalJson, strictKeys, keyLength, isolation, problemBase, logger};
}

/** A problem whose cause is in the log, under the name that the document gives the request. error: why. */
function logged(options, slug, error) {
  const answer = problem(slug, {base: options.problemBase});
  options.logger.error(`pgonce: problem=${slug} request=${answer.request}${options.scope ? ` scope=${options.scope}` : ''} ${errors.lineOf(error)}`);
  return answer;
}

function lines(rawHeaders, name) {
  const found = [];
  for (let i = 0; i < rawHeaders.length; i += 2) {
    if (rawHeaders[i].length === name.length && rawHeaders[i].toLowerCase() === name) found.push(rawHeaders[i + 1]);
  }
  return found;
}

/** Is this request one to protect? Known before its body is read. */
function wanted(options, req) {
  return options.methods.has(req.method) && (options.required || lines(req.rawHeaders, 'idempotency-key').length > 0);
}

/** {key}, or a problem's {slug, more}. */
function keyIn(req, {strictKeys, keyLength}) {
  const keys = lines(req.rawHeaders, 'idempotency-key');
  if (keys.length === 0) return {slug: 'key-missing'};
  if (keys.length > 1) return {slug: 'key-repeated'};
  const {key, fault} = keyOfHeader(keys[0], {strict: strictKeys, lengthMax: keyLength});
  return fault ? {slug: 'key-malformed', more: fault} : {key};
}

/** The key of a request that no middleware has seen, for a claim. */
function keyOf(req, {strict = false, lengthMax = 255} = {}) {
  const {key, slug, more} = keyIn(req.raw ?? req, {strictKeys: strict, keyLength: lengthMax});
  if (!slug) return key;
  const error = new errors.OnceError('key_malformed', more ?? 'one Idempotency-Key header is needed', {sqlstate: 'P4001', status: 400});
  throw Object.assign(error, {problem: {slug, more}});
}

/** {intent}, or the answer that refuses the request. */
function named(options, req, tenantOf, body) {
  const refuse = (slug, more) => ({refused: problem(slug, {more, base: options.problemBase})});
  const {key, slug, more: fault} = keyIn(req, options);
  if (slug) return refuse(slug, fault);
  let tenant = '';
  if (options.tenant) {
    tenant = nameOf(tenantOf, 'tenant');
    if (tenant === null || tenant === '') return refuse('tenant-missing');
    if ([...tenant].length > 255 || /[\0-\x1f\x7f]/.test(tenant) || !(tenant.isWellFormed?.() ?? true)) {
      return refuse('tenant-missing', 'The tenant must be valid UTF-8 of at most 255 characters, without control characters.');
    }
  }
  if (body === null) return refuse('body-too-large');
  const [traceparent, ...more] = lines(req.rawHeaders, 'traceparent');
  const host = (req.headers.host ?? req.headers[':authority'] ?? '').toLowerCase();
  return {
    intent: {
      scope: options.scope, key, tenant, traceparent: more.length === 0 && TRACEPARENT.test(traceparent ?? '') ? traceparent : undefined,
      request: {http: {method: req.method, target: host + (req.originalUrl ?? req.url), contentType: req.headers['content-type'] ?? '', body, canonicalJson: options.canonicalJson}},
    },
  };
}

/** A stored outcome as an answer. */
function replay(options, {verdict, answer, traceparent}) {
  const {problemBase: base} = options;
  if (verdict !== 'replay' && verdict !== 'final_failure') throw new Error(`pgonce: once.try_start answered ${verdict}`);
  if (answer.resultType === TOO_LARGE) return problem('too-large', {base, traceparent});
  const pairs = headers.decode(answer.headers);
  if (answer.status === null || answer.status < 200 || answer.status > 599 || !pairs) return problem('no-answer', {base, traceparent});
  const own = [['Idempotency-Replayed', 'true'], ...(traceparent ? [['Idempotency-Traceparent', traceparent]] : [])];
  return {status: answer.status, headers: [...pairs, ...own], body: answer.body ?? Buffer.alloc(0)};
}

function isMultipart(intent) {
  return /^multipart\//i.test(intent.request.http.contentType);
}

/** What start has said instead of proceed, as an answer. */
function concluded(options, intent, said) {
  const slug = PROBLEM_OF_VERDICT[said.verdict];
  if (!slug) return replay(options, said);
  const more = slug === 'mismatch' && isMultipart(intent)
    ? 'A multipart body that is built again has a new boundary, so it is another request: send the same bytes as the first time.'
    : slug === 'in-doubt' && said.answer?.status
      ? `The service answered ${said.answer.status}, which does not say whether the effect happened.` : undefined;
  return problem(slug, {more, base: options.problemBase, traceparent: slug === 'mismatch' ? undefined : said.traceparent});
}

/** Nothing was done. */
function unavailable(options, error) {
  const slug = error instanceof errors.OnceError ? PROBLEM_OF[error.code] : undefined;
  if (!slug) return logged(options, 'unavailable', error);
  return problem(slug, {more: slug === 'key-malformed' ? error.message : undefined, base: options.problemBase});
}

/** What a call or a claim throws, as an answer; undefined where that is for the application to say: its own errors, and mistakes in its use of this client. */
function answerOf(error, options) {
  if (error instanceof errors.NotDone) return logged(options, 'unreached', error);
  if (!(error instanceof errors.OnceError)) return undefined;
  if (error.problem) return problem(error.problem.slug, {more: error.problem.more, base: options.problemBase});
  if (error instanceof errors.FinalFailure && error.answer) {
    const answer = replay(options, {verdict: 'final_failure', answer: error.answer});
    return {...answer, headers: answer.headers.filter(([name]) => error.replayed || name !== 'Idempotency-Replayed')};
  }
  if (error instanceof errors.InDoubt && error.cause !== undefined) return logged(options, 'in-doubt', error.cause);
  const slug = PROBLEM_OF_VERDICT[error.code];
  if (slug) return problem(slug, {base: options.problemBase});
  if (NOT_STORED.has(error.code)) return logged(options, 'not-stored', error);
  return error.status === 500 ? undefined : unavailable(options, error);
}

/** An answer that is the application's fault, as text for whoever develops it. Nothing was done. */
function broken({logger}, message) {
  logger.error(`pgonce: ${message}`);
  const document = {type: 'about:blank', title: 'Internal Server Error', status: 500, detail: message};
  return {status: 500, headers: [['Content-Type', 'application/problem+json'], ['Cache-Control', 'no-store']], body: Buffer.from(JSON.stringify(document))};
}

/** Opens the request's transaction: {guard}, or {reply} where the handler is not to be called. */
async function open(pool, options, req, tenantOf, body) {
  const {intent, refused} = named(options, req, tenantOf, body);
  if (refused) return {reply: refused};
  return traced('http', options.scope, async (verdict) => {
    try {
      const said = await repeat(() => Attempt.begin(pool, intent, options.isolation), {waitMs: options.waitMs, deadlineMs: ASK_MS});
      verdict(said.attempt ? 'proceed' : said.verdict);
      return said.attempt ? {guard: new Guard(pool, options, said.attempt)} : {reply: concluded(options, intent, said)};
    } catch (error) {
      verdict(error instanceof errors.OnceError ? error.code : 'error');
      return {reply: unavailable(options, error)};
    }
  });
}

function effectOf(pairs, status) {
  const said = pairs.filter(([name]) => name.toLowerCase() === 'once-effect').map(([, value]) => value.toLowerCase());
  if (said.length === 1 && ['none', 'done', 'unknown'].includes(said[0])) return said[0];
  return REFUSALS.has(status) || status < 200 || status >= 500 ? 'none' : status >= 400 ? 'refused' : 'done';
}

/** A request whose effect is under way. */
class Guard {
  constructor(pool, options, attempt) {
    this.pool = pool;
    this.options = options;
    this.attempt = attempt;
    this.ended = false;
  }

  /** The handler's answer: decided, stored and committed; returns what is to be sent. Never rejects. */
  async end(status, pairs, body) {
    this.ended = true;
    const effect = effectOf(pairs, status);
    const answer = {status, headers: pairs.filter(([name]) => name.toLowerCase() !== 'once-effect'), body};
    try {
      await this.store(effect, status, answer);
      return answer;
    } catch (error) {
      return this.unstored(error);
    }
  }

  store(effect, status, {headers: pairs, body}) {
    if (effect === 'none') return this.attempt.abandon();
    if (effect === 'unknown') return this.attempt.doubt({status});
    // Done, and too large to keep: here, or as the scope finds.
    const large = {status, resultType: TOO_LARGE};
    const stored = body.length > this.options.responseMax ? large : {status, headers: headers.encode(pairs, this.options.listed), body};
    if (effect === 'done') return this.attempt.finish(stored, large);
    return this.attempt.fail({code: `http_${status}`, message: 'the request was refused'}, stored, large);
  }

  async unstored(error) {
    const {options, attempt: {intent}} = this;
    const known = errors.ofDriver(error);
    if (known.code === 'swallowed' || known.code === 'not_started') return broken(options, known.message);
    if (!Attempt.isUnanswered(error)) return unavailable(options, errors.isSerialization(error) || Attempt.isLost(error) ? errors.ofConnection(error) : known);
    try {
      // COMMIT was sent: only start can tell what became of it, once the lost connection's backend is gone.
      const said = await repeat(() => Attempt.begin(this.pool, intent), {waitMs: ASK_MS, deadlineMs: ASK_MS});
      if (!said.attempt) return said.verdict === 'active' ? logged(options, 'not-stored', error) : concluded(options, intent, said);
      await said.attempt.abandon();
      return unavailable(options, errors.ofConnection(error));
    } catch (unanswered) {
      return logged(options, 'not-stored', unanswered);
    }
  }

  /** The handler's answer cannot be kept, or there is none. Nothing was done. */
  async refuse(message) {
    this.ended = true;
    await this.attempt.abandon();
    return broken(this.options, message);
  }
}

module.exports = {HELD_MAX, answerOf, checked, keyOf, open, wanted};
