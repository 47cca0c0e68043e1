// SPDX-License-Identifier: PostgreSQL
// Fingerprints that the client computes itself, by docs/fingerprint.md, once it knows a tenant's salt: in the database they cost as much as half of start.
// Those of JSON are the database's, since it has the canonical form.
'use strict';

const {createHash} = require('crypto');

const TENANTS_MAX = 1000;
const OF_BYTES = Buffer.from('b');
const OF_REQUEST = Buffer.from('r');

const bytes = (value) => (value instanceof Uint8Array ? Buffer.from(value.buffer, value.byteOffset, value.byteLength) : null);

/** What is hashed after the salt, in pieces; null where the database has to do it. */
function hashedOf(request) {
  if (typeof request === 'string') return [OF_BYTES, Buffer.from(request)];
  if (bytes(request)) return [OF_BYTES, bytes(request)];
  const {method, target, contentType, body, canonicalJson} = request?.http ?? {};
  if (typeof method !== 'string' || typeof target !== 'string' || canonicalJson) return null;
  const parts = [Buffer.from(method), Buffer.from(contentType ?? ''), bytes(body) ?? Buffer.from(body ?? ''), Buffer.from(target)];
  const pieces = [OF_REQUEST];
  for (const part of parts) {
    const length = Buffer.alloc(8);
    length.writeUInt32BE(part.length, 4);
    pieces.push(length, part);
  }
  return pieces;
}

function fingerprintOf(salt, pieces) {
  const hash = createHash('sha256').update(salt);
  for (const piece of pieces) hash.update(piece);
  return hash.digest();
}

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
