// SPDX-License-Identifier: PostgreSQL
// Connections of pg: what is prepared on them, and how they end.
'use strict';

const assert = require('node:assert/strict');
const net = require('node:net');
const {after, before, beforeEach, test} = require('node:test');
const {randomUUID} = require('node:crypto');

const {Pool} = require('pg');

const {Once} = require('..');
const {poolOf, startServer} = require('./support');

let server;
let pool;
let once;
let key;

before(async () => {
  server = await startServer();
  pool = poolOf(server);
  once = new Once(pool);
});

after(async () => {
  await pool.end();
  await server.program.close();
});

beforeEach(() => {
  key = `order:${randomUUID()}`;
});

const insert = (tx) => tx.query('INSERT INTO effect (key) VALUES ($1)', [key]);
const effects = async () => (await pool.query('SELECT count(*)::int AS n FROM effect WHERE key = $1', [key])).rows[0].n;
const run = (of = once, effect = insert, options) => of.run('orders', key, {cart: 7}, async (tx, within) => (await effect(tx, within), {status: 201, body: {order: 7}}), options);

async function assertDoneOnce(result) {
  assert.deepEqual([result.status, result.body.toString()], [201, '{"order":7}']);
  assert.equal(await effects(), 1);
  const again = await run();
  assert.deepEqual([again.replayed, again.status, again.body.toString()], [true, 201, '{"order":7}']);
  assert.equal(await effects(), 1);
}

/** A client over one new connection. */
async function overOne(t) {
  const own = poolOf(server, {max: 1});
  const client = await own.connect();
  const {release} = client;
  t.after(async () => {
    release.call(client, true);
    await own.end();
  });
  return {client, one: new Once(Object.assign(Object.create(own), {connect: async () => Object.assign(client, {release() {}})}))};
}

test('each statement is prepared once for a connection', async (t) => {
  const {client, one} = await overOne(t);
  const names = async () => (await client.query('SELECT name FROM pg_prepared_statements')).rows.map(({name}) => name.split(' ')[0]).sort();
  await run(one);
  assert.deepEqual(await names(), ['BEGIN', 'COMMIT', 'SAVEPOINT', 'once.finish', 'once.try_start']);
  const parse = t.mock.method(client.connection, 'parse');
  key = `order:${randomUUID()}`;
  await run(one, async () => {});
  assert.equal(parse.mock.callCount(), 0);
  key = `order:${randomUUID()}`;
  await assert.rejects(run(one, async (tx) => tx.query('SELECT 1/0')), {code: '22012'});
  key = `order:${randomUUID()}`;
  await assertDoneOnce(await run(one));
  assert.deepEqual(await names(), ['BEGIN', 'COMMIT', 'ROLLBACK', 'ROLLBACK', 'SAVEPOINT', 'once.finish', 'once.try_start']);
});

for (const which of ['BEGIN', 'once.try_start', 'SAVEPOINT', 'once.finish', 'COMMIT']) {
  test(`behind a pooler that takes another connection, ${which} is not prepared there, and the effect happens once`, async (t) => {
    const {client, one} = await overOne(t);
    await run(one);
    const {rows: [{name}]} = await client.query('SELECT name FROM pg_prepared_statements WHERE name LIKE $1', [`${which}%`]);
    await client.query(`DEALLOCATE "${name}"`);
    for (let i = 0; i < 2; i++) {
      key = `order:${randomUUID()}`;
      await assertDoneOnce(await run(one));
    }
    const {rows} = await client.query('SELECT name FROM pg_prepared_statements');
    assert.equal(rows.length, 4, 'nothing is prepared any more');
  });
}

test('what another client has left prepared on the connection is in nobody\'s way', async (t) => {
  const {client: first, one} = await overOne(t);
  await run(one);
  const {rows} = await first.query("SELECT name FROM pg_prepared_statements WHERE name LIKE 'once%'");
  const {client: other, one: second} = await overOne(t);
  for (const {name} of rows) await other.query(`PREPARE "${name}" AS SELECT 1`);
  key = `order:${randomUUID()}`;
  await assertDoneOnce(await run(second));
});

/** A server that says whatever is given to whoever connects, in one packet. */
async function said(...messages) {
  const server = net.createServer((socket) => socket.once('data', () => socket.end(Buffer.concat(messages))).on('error', () => {}));
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return server;
}

const message = (kind, ...fields) => {
  const body = Buffer.concat(fields.map((field) => (Buffer.isBuffer(field) ? field : Buffer.from(`${field}\0`))));
  const size = Buffer.alloc(4);
  size.writeInt32BE(body.length + 4);
  return Buffer.concat([Buffer.from(kind), size, body]);
};
const READY = [message('R', Buffer.alloc(4)), message('Z', Buffer.from('I'))];
const ENDED = message('E', 'SFATAL', 'VFATAL', 'C57P01', 'Mterminating connection due to administrator command', Buffer.alloc(1));

test('a connection that is ended in the packet that opens it is a lost connection, and not the end of the process', async () => {
  const server = await said(...READY, ENDED);
  const pool = new Pool({host: '127.0.0.1', port: server.address().port, user: 'postgres', database: 'x', max: 1});
  const once = new Once(pool);
  await assert.rejects(once.run('orders', 'key', {}, async () => {}, {deadlineMs: 300}), (error) => error.code === 'connection' && error.retryable);
  await pool.end();
  await new Promise((resolve) => server.close(resolve));
});

test('an idle connection that the server ends is not the end of a process that nobody told to listen', async () => {
  const pool = new Pool({host: '127.0.0.1', port: server.port, user: server.user, database: server.database, application_name: 'idle'});
  const once = new Once(pool);
  const place = (name) => once.run('orders', `${key} ${name}`, {}, async (tx) => void (await insert(tx)));
  await place('before');
  const gone = new Promise((resolve) => pool.once('remove', resolve));
  assert.equal((await server.program.tell('terminate idle')).ended, 1);
  await gone;
  assert.equal((await place('after')).replayed, false);
  await pool.end();
});
