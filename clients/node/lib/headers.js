// SPDX-License-Identifier: PostgreSQL
// Which headers are stored and replayed, and their form in response_headers: the gateway's (lib/http/headers.c).
'use strict';

const KEPT = [
  // spec: headers-kept
  // By default: what describes the answer and holds for every attempt alike. Names that an application invents are usually X-; those of browsers'
  // access control belong to the answer, or a page could read the first one and not its replay.
  'accept-patch', 'accept-post', 'access-control-*', 'allow', 'cache-control', 'content-*', 'cross-origin-*', 'deprecation', 'digest', 'etag',
  'expires', 'last-modified', 'link', 'location', 'permissions-policy', 'pragma', 'preference-applied', 'ratelimit-*', 'refresh', 'repr-digest',
  'referrer-policy', 'request-id', 'retry-after', 'sunset', 'traceparent', 'vary', 'warning', 'x-*',
  // end of spec
];
const NEVER = [
  // spec: headers-never
  // Credentials: meant for the client of the first attempt, at that moment.
  'set-cookie', 'set-cookie2', 'www-authenticate', 'authentication-info', 'authentication-control', 'proxy-authenticate', 'proxy-authentication-info',
  'authorization', 'proxy-authorization', 'clear-site-data', 'dpop-nonce', 'replay-nonce',
  // Of one connection.
  'connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'alt-svc', 'http2-settings',
  // Framing, and what the server says anew.
  'content-length', 'accept-ranges', 'date', 'server', 'age', 'via', 'status',
  // Instructions to the proxy.
  'x-accel-*', 'x-sendfile',
  // The door's own.
  'idempotency-replayed', 'idempotency-traceparent', 'idempotency-key', 'once-*',
  // end of spec
];
const SECRET = [
  // spec: headers-secret
  // Words in the name of a header whose value is a credential, also as a part of a longer name.
  'access-key', 'access-token', 'api-key', 'apikey', 'auth-token', 'bearer', 'credential', 'csrf', 'id-token', 'jwt', 'passwd', 'password',
  'private-key', 'refresh-token', 'secret', 'security-token', 'session-id', 'session-token', 'xsrf',
  // end of spec
];

/** Of names, and prefixes that end in *: is this name, in any case, among them? */
function among(list) {
  const names = new Set(list.filter((pattern) => !pattern.endsWith('*')));
  const prefixes = list.filter((pattern) => pattern.endsWith('*')).map((pattern) => pattern.slice(0, -1));
  return (name) => {
    const lower = name.toLowerCase();
    return names.has(lower) || prefixes.some((prefix) => lower.startsWith(prefix));
  };
}

const neverByName = among(NEVER);
// Access-Control-Allow-Credentials holds none: it says that a page may send them.
const control = among(['access-control-*']);
const never = (name) => neverByName(name) || (!control(name) && SECRET.some((word) => name.toLowerCase().includes(word)));
const keptByDefault = among(KEPT);

/** list: names, or prefixes that end in *. One that is never kept is a mistake. Returns the test of a name. */
function checkList(list) {
  if (list === undefined) return keptByDefault;
  const lower = list.map((name) => name.toLowerCase());
  const bad = lower.find((name) => never(name));
  if (bad) throw new TypeError(`pgonce: headers names ${bad}, which is never replayed`);
  return among(lower);
}

/** Pairs of name and value as the contract stores them: in order, repetition and bytes kept. Values are Node's: a character for a byte. listed: of checkList. */
function encode(pairs, listed) {
  const stored = pairs.filter(([name]) => listed(name) && !never(name)).map(([name, value]) =>
    (/^[\t -~]*$/.test(value) ? [name, value] : [name, null, Buffer.from(value, 'latin1').toString('hex')]));
  return {h: stored};
}

const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;

/** The stored pairs, or undefined if they cannot be sent as headers. Also reads the flat form that SQL stores. */
function decode(stored) {
  let pairs = [];
  if (stored === null || stored === undefined) return pairs;
  if (Array.isArray(stored.h)) {
    pairs = stored.h.map(([name, value, hex]) => [name, value ?? Buffer.from(hex, 'hex').toString('latin1')]);
  } else {
    for (const [name, value] of Object.entries(stored)) {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (typeof each !== 'string' && typeof each !== 'number') return undefined;
        pairs.push([name, Buffer.from(String(each)).toString('latin1')]);
      }
    }
  }
  return pairs.every(([name, value]) => TOKEN.test(name) && !/[\0\r\n]/.test(value)) ? pairs.filter(([name]) => !never(name)) : undefined;
}

module.exports = {checkList, decode, encode};
