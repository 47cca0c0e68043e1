// SPDX-License-Identifier: PostgreSQL
// What the applications of Node share: the pool, the effect, and the texts of the answers.
'use strict';

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

module.exports = {
  pool, on, once, options, txOf, effect, elsewhere,
  files: process.env.FILES,
  inUse: () => ({in_use: pool.totalCount - pool.idleCount}),
  order: {order: 7, name: 'Zoë ☃ 😀', note: 'a/b <c> & "d"', amount: 12.5},
  text: 'Grüße, 世界\n',
  pieces: Array.from({length: 5}, (_, i) => Buffer.alloc(1000, 250 + i)),
  lines: ['eins ä\n', 'zwei ☃\n', 'drei 😀\n'],
};
