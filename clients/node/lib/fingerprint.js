// SPDX-License-Identifier: PostgreSQL
// Fingerprints that the client computes itself, by docs/reference/fingerprint.md, once it knows a tenant's salt: in the database they cost as much as half of start.
// Those of JSON are the database's, since it has the canonical form.
'use strict';

const {createHash} = require('crypto');

const TENANTS_MAX = 1000;
const OF_BYTES = Buffer.from('b');
const OF_REQUEST = Buffer.from('r');
const LENGTH_BYTES = 8;

const bytes = (value) => (value instanceof Uint8Array ? Buffer.from(value.buffer, value.byteOffset, value.byteLength) : null);

/** What is hashed after the salt; null where the database has to do it. */
function hashedOf(request) {
  if (typeof request === 'string') return Buffer.concat([OF_BYTES, Buffer.from(request)]);
  if (bytes(request)) return Buffer.concat([OF_BYTES, bytes(request)]);
  const {method, target, contentType, body, canonicalJson} = request?.http ?? {};
  if (typeof method !== 'string' || typeof target !== 'string' || canonicalJson) return null;
  const parts = [Buffer.from(method), Buffer.from(contentType ?? ''), bytes(body) ?? Buffer.from(body ?? ''), Buffer.from(target)];
  const lengths = Buffer.alloc(LENGTH_BYTES * parts.length);
  const pieces = [OF_REQUEST];
  for (const [i, part] of parts.entries()) {
    const at = LENGTH_BYTES * i;
    lengths.writeUInt32BE(part.length, at + 4);
    pieces.push(lengths.subarray(at, at + LENGTH_BYTES), part);
  }
  return Buffer.concat(pieces);
}

const fingerprintOf = (salt, hashed) => createHash('sha256').update(salt).update(hashed).digest();

// By connection: another one may lead to another database, as after a restore.
const known = new WeakMap();

const saltOf = (client, tenant) => known.get(client)?.get(tenant);

function remember(client, tenant, salt) {
  let salts = known.get(client);
  if (!salts || salts.size >= TENANTS_MAX) known.set(client, (salts = new Map()));
  salts.set(tenant, salt);
}

const forget = (client) => known.delete(client);

module.exports = {bytes, fingerprintOf, forget, hashedOf, remember, saltOf};
