// SPDX-License-Identifier: PostgreSQL
// What an agent is told, and the client that it is an agent of: agent.js CLIENT DRIVER DSN [PORT].
'use strict';

const {createRequire} = require('module');

const [client, driver, dsn, servesAt] = process.argv.slice(2);
const theirs = createRequire(`${client}/index.js`);
const {Pool} = theirs('pg');
const {Once, nodes} = theirs('./index.js');

function addressIn(words) {
  const {hostaddr: host, port, dbname: database, user} = Object.fromEntries(words.split(' ').map((pair) => pair.split('=')));
  return {host, port: Number(port), database, user};
}

const address = addressIn(dsn);

function poolAt(at) {
  const pool = new Pool({...address, ...at, max: servesAt ? 8 : 4, connectionTimeoutMillis: 3000, keepAlive: true});
  pool.on('error', () => {}); // of an idle connection: the next attempt takes another
  return pool;
}

const pool = poolAt({});

/** What the calls and services use: a client over one pool, or over several nodes. */
const world = {once: new Once(pool), pools: [pool], routed: {tenants: [], refusals: []}};

/** The nodes of a case: a function of the tenant that gives the first node, and the second one if it gets a refusal; the client's own router; or one pool. */
function useNodes(dsns, router) {
  const before = world.pools.filter((each) => each !== pool);
  world.pools = dsns.map((words) => poolAt(addressIn(words)));
  world.routed = {tenants: [], refusals: []};
  const own = (tenant, refused) => {
    world.routed.tenants.push(tenant);
    if (refused) world.routed.refusals.push([refused.slot, refused.epoch]);
    return world.pools[refused ? 1 : 0];
  };
  world.once = new Once({nodes: () => nodes(world.pools), own: () => own, pool: () => world.pools[0]}[router]());
  return Promise.all(before.map((each) => each.end()));
}

module.exports = {driver, servesAt, theirs, pool, world, useNodes, once: world.once, away: () => new Once(poolAt({host: '127.0.0.1', port: 1}))};
