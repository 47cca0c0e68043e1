// SPDX-License-Identifier: PostgreSQL
// What the applications of Node share: the pool, the effect, and what the answers say.
'use strict';

const crypto = require('crypto');

const {sql} = require('drizzle-orm');
const {drizzle} = require('drizzle-orm/node-postgres');
const {Pool} = require('pg');
const {Once} = require('pgonce');

const pool = new Pool({connectionString: process.env.DATABASE_URL, max: 4});
pool.on('error', () => {});
const on = process.env.PGONCE === 'on';
const once = new Once(pool);
const options = {scope: 'transparency', tenant: false, handlerMs: Number(process.env.HANDLER_MS)};

/** Where the handler works: its transaction, or, without pgonce, the pool. */
const txOf = (req) => (on ? req.pgonce.tx : pool);
const effect = (req, name) => txOf(req).query('INSERT INTO effect (name) VALUES ($1)', [name]);
const elsewhere = (name) => pool.query('INSERT INTO effect (name) VALUES ($1)', [name]);

/** Two of drizzle's transactions, one in the other, of which the inner one is rolled back. */
const nested = (req) => drizzle(txOf(req)).transaction(async (outer) => {
  await outer.transaction(async (inner) => {
    await inner.execute(sql`INSERT INTO effect (name) VALUES ('nested-inner')`);
    throw new Error('rolled back');
  }).catch(() => {});
  await outer.execute(sql`INSERT INTO effect (name) VALUES ('nested')`);
});

/** Work that comes when the answer has been sent. */
const after = (work, res) => res.once('finish', () => work().catch((error) => console.error(error)));

async function lateTx(req) {
  try {
    if (!on) throw new Error('there is no tx');
    await txOf(req).query("INSERT INTO effect (name) VALUES ('late-tx-after')");
  } catch {
    await elsewhere('late-tx-refused');
  }
}

module.exports = {
  pool, on, once, options, txOf, effect, elsewhere, nested, after, lateTx,
  files: process.env.FILES,
  inUse: () => ({in_use: pool.totalCount - pool.idleCount}),
  sha256: (bytes) => crypto.createHash('sha256').update(bytes).digest('hex'),
  turn: () => new Promise(setImmediate),
  order: {order: 7, name: 'Zoë ☃ 😀', note: 'a/b <c> & "d"', amount: 12.5},
  text: 'Grüße, 世界\n',
  pieces: Array.from({length: 5}, (_, i) => Buffer.alloc(1000, 250 + i)),
  lines: ['eins ä\n', 'zwei ☃\n', 'drei 😀\n'],
};
