// SPDX-License-Identifier: PostgreSQL
// The gateway's problem documents (docs/reference/problems.md), as far as a client gives them.
'use strict';

const {randomBytes} = require('crypto');

// slug: [status, title, detail, seconds of Retry-After where it is worth a retry]
const PROBLEMS = {
  // spec: problems
  'key-missing': [400, 'Idempotency-Key is missing', 'This operation needs an Idempotency-Key header. Nothing was done.'],
  'key-malformed': [400, 'Idempotency-Key is malformed', 'Nothing was done.'],
  'key-repeated': [400, 'Idempotency-Key is sent more than once', 'Send one Idempotency-Key header with one key. Nothing was done.'],
  'tenant-missing': [400, 'The request does not say whose key this is', 'What tells callers apart (a header, a claim, a certificate) is empty. Nothing was done.'],
  'mismatch': [422, 'Idempotency-Key is already used', 'This key was first used with another request, whose answer is untouched. Use a new key for a new request.'],
  'active': [409, 'A request with this Idempotency-Key is outstanding', 'The first request with this key is still running. Send the same request again later.', 1],
  'in-doubt': [409, 'The outcome of this request is unknown', 'An earlier attempt ended, and it is unknown whether it took effect. A retry does not run until that is known. Do not send it under a new key.'],
  'expired': [409, 'Idempotency-Key is too old', 'This key is older than the keys that are kept, so it is unknown whether it was used. Nothing was done now. Find out before you use a new key.'],
  'too-large': [409, 'Done, but its answer was too large to keep', 'The request with this key was carried out, and its answer was passed on once. It will not be run again while this key is kept.'],
  'no-answer': [409, 'Finished, without an answer to repeat', 'The request with this key is finished, and no HTTP answer is stored for it. It will not be run again while this key is kept.'],
  'body-too-large': [413, 'The request body is too large', 'A body of this size cannot be protected here. Nothing was done.'],
  'refused': [403, 'The tenant or the scope is refused', 'No key may be kept for this caller. Nothing was done.'],
  'unavailable': [503, 'Idempotency keys cannot be checked right now', 'Nothing was done. Send the same request with the same key again later.', 5],
  'not-stored': [503, 'The answer could not be stored', 'The request may have taken effect. Send it again with the same key, never with a new one, to learn its outcome.', 5],
  'unreached': [502, 'The service could not be reached', 'Nothing was done. Send the same request with the same key again later.', 5],
  'timed-out': [503, 'The request took too long', 'It was stopped, and its changes were rolled back. Nothing was done. Send the same request with the same key again later.', 5],
  // end of spec
};

// spec: problem-base
const BASE = 'urn:pgonce:problem:';
const BASE_MAX = 256;
const BASE_REFUSED = '"\\<>^`{|}';
// end of spec
const MORE_MAX = 300; // bytes, as they are escaped

/** As every door writes it, whole escapes alone: other bytes than those of printable ASCII are a question mark. */
function escaped(more) {
  let out = '';
  for (const byte of Buffer.from(more)) {
    const c = String.fromCharCode(byte);
    const piece = c === '"' || c === '\\' ? `\\${c}` : byte < 0x20 ? `\\u${byte.toString(16).padStart(4, '0')}` : c <= '~' ? c : '?';
    if (out.length + piece.length > MORE_MAX) break;
    out += piece;
  }
  return out;
}

/** A base of the application's, checked: it stands in a JSON string as it is. */
function checkBase(base = BASE) {
  if (typeof base !== 'string' || base.length > BASE_MAX || !/^[!-~]+$/.test(base) || [...BASE_REFUSED].some((each) => base.includes(each))) {
    throw new TypeError(`pgonce: problemBase is the start of a URI: 1 to ${BASE_MAX} characters of ASCII, without spaces and ${BASE_REFUSED}`);
  }
  return base;
}

/** An answer: {status, headers, body}, and request: its name in a log. more: what this occurrence adds to the detail. */
function problem(slug, {more, base = BASE, traceparent} = {}) {
  const [status, title, detail, retryAfter] = PROBLEMS[slug];
  const request = randomBytes(16).toString('hex');
  const document = `{"type":"${base}${slug}","title":"${title}","status":${status},"detail":"${detail}${more ? ` ${escaped(more)}` : ''}",`
    + `"instance":"urn:pgonce:request:${request}","retryable":${retryAfter !== undefined}}`;
  const headers = [['Content-Type', 'application/problem+json'], ['Cache-Control', 'no-store']];
  if (traceparent) headers.push(['Idempotency-Traceparent', traceparent]);
  if (retryAfter !== undefined) headers.push(['Retry-After', String(retryAfter)]);
  return {status, headers, body: Buffer.from(document), request};
}

module.exports = {checkBase, problem};
