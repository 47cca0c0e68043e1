// SPDX-License-Identifier: PostgreSQL
// What an agent is told, and the client that it is an agent of: agent.js CLIENT DRIVER DSN [PORT].
'use strict';

const {createRequire} = require('module');

const [client, driver, dsn, servesAt] = process.argv.slice(2);
const theirs = createRequire(`${client}/index.js`);
const {Pool} = theirs('pg');
const {Once} = theirs('./index.js');

const {hostaddr: host, port, dbname: database, user} = Object.fromEntries(dsn.split(' ').map((pair) => pair.split('=')));

function poolAt(address) {
  const pool = new Pool({...address, database, user, max: servesAt ? 8 : 4, connectionTimeoutMillis: 3000, keepAlive: true});
  pool.on('error', () => {}); // of an idle connection: the next attempt takes another
  return pool;
}

const pool = poolAt({host, port: Number(port)});

module.exports = {driver, servesAt, theirs, pool, once: new Once(pool), away: () => new Once(poolAt({host: '127.0.0.1', port: 1}))};
