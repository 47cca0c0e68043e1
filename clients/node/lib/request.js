// SPDX-License-Identifier: PostgreSQL
// What a request to protect has to say: its key, its tenant, what is hashed of it. The gateway reads it in the same way.
'use strict';

const {nameOf} = require('./contract');
const errors = require('./errors');
const headers = require('./headers');
const {KEY_MAX, keyOfHeader} = require('./key');
const {checkBase} = require('./problem');

// spec: names
const NAME_CHARACTERS_MAX = 255;
const TENANT_MALFORMED = 'The tenant must be valid UTF-8 of at most 255 characters, without control characters.';
// end of spec
const HANDLER_MS = 30000;
const TRACEPARENT = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;
const MODES = ['transaction', 'lease'];

/** The options of a middleware, with their defaults. */
function checked(logger, {
  scope, tenant, mode = 'transaction', required = true, waitMs = 0, handlerMs = HANDLER_MS, responseMax = 1 << 20, bodyMax = 16 << 20, methods = ['POST', 'PATCH'], headers: list,
  host = true, canonicalJson = false, strictKeys = false, keyLength = KEY_MAX, isolation, gateway = false, problemBase, ...rest
}) {
  const strange = Object.keys(rest)[0];
  if (strange) throw new TypeError(`pgonce: there is no option ${strange}`);
  if (typeof scope !== 'string' || scope === '') throw new TypeError('pgonce: a scope is needed: the kind of operation, such as orders');
  if (tenant !== false && typeof tenant !== 'function') {
    throw new TypeError('pgonce: tenant is a function of the request that says whose key it is, by what authentication has proved; false where there is but one caller');
  }
  if (!MODES.includes(mode)) throw new TypeError(`pgonce: mode is ${MODES.map((each) => `'${each}'`).join(' or ')}`);
  if (mode === 'lease' && isolation !== undefined) throw new TypeError("pgonce: mode 'lease' has no transaction that could have an isolation");
  if (typeof gateway !== 'boolean') throw new TypeError('pgonce: gateway is true where a gateway that every request comes through has the same scope; else false');
  if (!(handlerMs > 0 && handlerMs <= 2 ** 31 - 1)) throw new TypeError('pgonce: handlerMs is a number of milliseconds: every attempt ends');
  return {
    scope, tenant, mode, required, waitMs, handlerMs, responseMax, bodyMax, methods: new Set(methods), listed: headers.checkList(list), host, canonicalJson, strictKeys, keyLength, isolation,
    gateway, problemBase: checkBase(problemBase), logger,
  };
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
function keyOf(req, {strict = false, lengthMax = KEY_MAX} = {}) {
  const {key, slug, more} = keyIn(req.raw ?? req, {strictKeys: strict, keyLength: lengthMax});
  if (!slug) return key;
  const error = new errors.OnceError('key_malformed', more ?? 'one Idempotency-Key header is needed', {sqlstate: 'P4001', status: 400});
  throw Object.assign(error, {problem: {slug, more}});
}

const CLAIM = ['once-tenant', 'once-scope', 'once-key', 'once-fence'];

/** The fence under which a gateway in front holds this very intent; undefined: none does. It percent-encodes what a header cannot hold. */
function fenceOf(req, {tenant, scope, key}) {
  const said = CLAIM.map((name) => lines(req.rawHeaders, name));
  if (said.some((each) => each.length !== 1)) return undefined;
  const [[fence], ...names] = [said[3], said[0], said[1], said[2]];
  try {
    if ([tenant, scope, key].some((name, i) => decodeURIComponent(names[i][0]) !== name)) return undefined;
  } catch {
    return undefined;
  }
  return /^[1-9]\d{0,9}$/.test(fence) && Number(fence) < 2 ** 31 ? Number(fence) : undefined;
}

/** {intent}, or a problem's {slug, more}. body null: too large. */
function named(options, req, tenantOf, body) {
  const refuse = (slug, more) => ({slug, more});
  const {key, slug, more: fault} = keyIn(req, options);
  if (slug) return refuse(slug, fault);
  let tenant = '';
  if (options.tenant) {
    tenant = nameOf(tenantOf, 'tenant');
    if (tenant === null || tenant === '') return refuse('tenant-missing');
    if ([...tenant].length > NAME_CHARACTERS_MAX || /[\0-\x1f\x7f]/.test(tenant) || !(tenant.isWellFormed?.() ?? true)) {
      return refuse('tenant-missing', TENANT_MALFORMED);
    }
  }
  if (body === null) return refuse('body-too-large');
  const [traceparent, ...more] = lines(req.rawHeaders, 'traceparent');
  const host = (req.headers.host ?? req.headers[':authority'] ?? '').toLowerCase();
  const fence = fenceOf(req, {tenant, scope: options.scope, key});
  return {
    intent: {
      ...(fence === undefined ? {} : options.gateway ? {fence} : {claimedInFront: true}),
      scope: options.scope, key, tenant, traceparent: more.length === 0 && TRACEPARENT.test(traceparent ?? '') ? traceparent : undefined,
      request: {http: {method: req.method, target: (options.host ? host : '') + (req.originalUrl ?? req.url), contentType: req.headers['content-type'] ?? '', body, canonicalJson: options.canonicalJson}},
    },
  };
}

module.exports = {checked, keyIn, keyOf, named, wanted};
