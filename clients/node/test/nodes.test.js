// SPDX-License-Identifier: PostgreSQL
// The router over several nodes. Its calls are cases of spec/cases/nodes.json; here is what they cannot see.
'use strict';

const assert = require('node:assert/strict');
const http = require('node:http');
const {after, before, beforeEach, test} = require('node:test');
const {randomUUID} = require('node:crypto');
const {inspect} = require('node:util');

const {Once, SlotClosed, nodes} = require('..');
const {repeat} = require('../lib/transaction');
const {poolOf, startServer} = require('./support');

const TENANT = 'acme';
let server;
let pools; // of two nodes
let slot;
let key;

const close = (pool) => pool.query('SELECT once_job.close_slot($1)', [slot]);
const open = (pool, epoch) => pool.query('SELECT once_job.open_slot($1, $2)', [slot, epoch]);
const effects = async (pool) => (await pool.query('SELECT count(*)::int AS n FROM effect WHERE key = $1', [key])).rows[0].n;
const run = (once, tenant = TENANT) => once.run('orders', key, {cart: 7}, (tx) => void tx.query('INSERT INTO effect (key) VALUES ($1)', [key]), {tenant});

/** The pool of a node, which counts the connections that are taken: one for each inquiry. */
function counted(pool) {
  const own = Object.create(pool);
  own.taken = 0;
  own.connect = (...args) => {
    own.taken++;
    return pool.connect(...args);
  };
  return own;
}

/** A pool of a server that is not there. */
const away = () => poolOf(server, {port: 1, password: 'Tr0ub4dor&3'});

before(async () => {
  server = await startServer();
  pools = [server, await server.program.tell('database')].map((said) => poolOf(said));
  const [first, second] = pools;
  await first.query('CALL once.divide(true)');
  await second.query('SELECT once._join($1::jsonb)', [(await first.query('SELECT once._node()::text AS node')).rows[0].node]);
  await second.query('CALL once.divide()');
  ({rows: [{slot}]} = await first.query('SELECT once.slot_of($1) AS slot', [TENANT]));
});

after(async () => {
  await Promise.all(pools.map((pool) => pool.end()));
  await server.program.close();
});

beforeEach(async () => {
  key = `order:${randomUUID()}`;
  for (const [i, pool] of pools.entries()) await pool.query(`SELECT setval(to_regclass('once.slot_' || n || '_seq'), $1) FROM generate_series(0, 63) AS n`, [i === 0 ? 3 : 2]);
});

test('a report gets slot_closed when its time is up', async () => {
  const refused = new SlotClosed('slot_closed', 'closed');
  let tries = 0;
  const report = () => {
    tries++;
    throw refused;
  };
  await assert.rejects(repeat(report, {isReport: true, deadlineMs: 100}), (error) => error === refused);
  assert.ok(tries > 2);
});

test('a thousand tenants at once share one inquiry of the slots, and each asks for its own slot once', async () => {
  const [first, second] = pools.map(counted);
  const router = nodes([first, second]);
  const tenants = Array.from({length: 1000}, (_, n) => `tenant ${n}`);
  const found = await Promise.all([...tenants, ...tenants].map((tenant) => router(tenant)));
  assert.ok(found.every((pool) => pool === first));
  assert.deepEqual([first.taken, second.taken], [1001, 1]);
  await Promise.all(tenants.map((tenant) => router(tenant)));
  assert.deepEqual([first.taken, second.taken], [1001, 1], 'nothing is asked again');
});

test('the slots of ten thousand tenants are remembered, those that were used last', async () => {
  const first = counted(pools[0]);
  const router = nodes([first]);
  const ask = (from, to) => Promise.all(Array.from({length: to - from}, (_, n) => router(`tenant ${from + n}`)));
  await ask(0, 10_000);
  await router('tenant 0');
  assert.equal(first.taken, 10_001);
  await router('one more');
  await router('tenant 0');
  assert.equal(first.taken, 10_002);
  await router('tenant 1');
  assert.equal(first.taken, 10_003, 'it was the one that was used longest ago');
});

test('a node that is away is named, without its password, and asked again after a second', async (t) => {
  const gone = counted(away());
  t.after(() => gone.end());
  await close(pools[0]);
  const router = nodes([pools[0], gone]);
  const refused = (error) => {
    assert.deepEqual([error.code, error.status, error.retryable], ['connection', 503, true]);
    assert.equal(error.message, `no node is known that serves slot ${slot}: node 2 (127.0.0.1:1/${server.database}) did not answer; nothing was done`);
    assert.doesNotMatch(inspect(error, {depth: 9, showHidden: true}), /Tr0ub4dor/);
    return true;
  };
  await assert.rejects(router(TENANT), refused);
  const asked = performance.now();
  while (performance.now() < asked + 800) await assert.rejects(router(TENANT), refused);
  assert.equal(gone.taken, 1);
  await new Promise((resolve) => setTimeout(resolve, 1000 - (performance.now() - asked)));
  await assert.rejects(router(TENANT), refused);
  assert.equal(gone.taken, 2);
});

test('nodes that do not answer at all are an error of the database', async (t) => {
  const gone = away();
  t.after(() => gone.end());
  await assert.rejects(run(new Once(nodes([gone]))), {code: 'connection', message: /^no node is known: node 1 \(127\.0\.0\.1:1\/\w+\) did not answer; nothing was done$/});
});

test('what a node said before is valid while it is away, unless another one knows a higher epoch', async (t) => {
  const own = [poolOf(server), pools[1]];
  t.after(() => own[0].end());
  const router = nodes(own);
  assert.equal(await router(TENANT), own[0]);
  const connect = t.mock.method(own[0], 'connect', (done) => process.nextTick(done, Object.assign(new Error('away'), {code: 'ECONNREFUSED'})));
  const refused = (epoch) => Object.assign(new SlotClosed('slot_closed', ''), {slot, epoch});
  assert.equal(await router(TENANT, refused(0)), own[0]);
  assert.equal(connect.mock.callCount(), 0, 'the answer is newer than the refusal');
  assert.equal(await router(TENANT, refused(1)), own[0]);
  assert.equal(connect.mock.callCount(), 2, 'the one that was under way might have been too old');
  await open(pools[1], 2);
  assert.equal(await router(TENANT, refused(1)), own[1]);
  await close(pools[1]);
  await assert.rejects(router(TENANT, refused(2)), {code: 'connection', message: new RegExp(`slot ${slot}: node 1 .* did not answer`)});
});

test('the function of the tenant must give a pool', async () => {
  assert.throws(() => new Once({}), TypeError);
  assert.throws(() => nodes([]), TypeError);
  assert.throws(() => nodes([{}]), TypeError);
  await assert.rejects(run(new Once(() => undefined)), /the function of the tenant must return a Pool/);
});

test('an error of the function reaches the caller', async () => {
  const error = new Error('no such tenant');
  await assert.rejects(run(new Once(async () => {
    throw error;
  })), error);
});

test('a refusal says which slot and epoch, whatever the tenant is called', async () => {
  const tenant = "x; slot=99 epoch=9";
  const {rows: [{of}]} = await pools[0].query('SELECT once.slot_of($1) AS of', [tenant]);
  await pools[0].query('SELECT once_job.close_slot($1)', [of]);
  await assert.rejects(run(new Once(pools[0]), tenant), (error) => {
    assert.ok(error instanceof SlotClosed);
    assert.deepEqual([error.code, error.sqlstate, error.slot, error.epoch, error.retryable], ['slot_closed', 'P4097', of, 1, true]);
    return true;
  });
});

test("a refusal within the effect is the effect's own: it is not called again", async () => {
  await close(pools[0]);
  const once = new Once(nodes(pools));
  let calls = 0;
  await open(pools[1], 2);
  await close(pools[1]);
  const {rows: [{other}]} = await pools[0].query("SELECT t AS other FROM generate_series(1, 999) AS n, LATERAL (SELECT 'tenant ' || n) AS s(t) WHERE once.slot_of(t) <> $1 LIMIT 1", [slot]);
  await assert.rejects(once.run('orders', key, {}, async (tx) => {
    calls++;
    await tx.query('INSERT INTO effect (key) VALUES ($1)', [key]);
    await once.emit(tx, 'order.placed', {}, {tenant: TENANT});
  }, {tenant: other}), SlotClosed);
  await assert.rejects(once.consume('stock', key, {}, async (tx) => {
    calls++;
    await once.emit(tx, 'order.placed', {}, {tenant: TENANT});
  }, {tenant: other}), SlotClosed);
  assert.deepEqual([calls, await effects(pools[0]), await effects(pools[1])], [2, 0, 0]);
});

for (const mode of ['transaction', 'lease']) {
  test(`a request in mode '${mode}' follows its tenant, and one without a key has no pool`, async (t) => {
    const once = new Once(nodes(pools), {logger: {error: () => {}}});
    const seen = [];
    const handler = async (req, res) => {
      seen.push(Object.keys(req.pgonce).includes('tx'));
      res.end('done');
    };
    const service = http.createServer(once.http({scope: 'orders', tenant: () => TENANT, required: false, mode}, handler)).listen(0, '127.0.0.1');
    await new Promise((resolve) => service.once('listening', resolve));
    t.after(() => service.close());
    const send = (headers) => fetch(`http://127.0.0.1:${service.address().port}/`, {method: 'POST', headers, body: 'x'});
    assert.equal((await send({'Idempotency-Key': key})).status, 200);
    await close(pools[0]);
    await open(pools[1], 2);
    assert.equal((await send({'Idempotency-Key': `${key}/2`})).status, 200);
    assert.equal((await send({})).status, 200);
    assert.deepEqual(seen, mode === 'lease' ? [false, false, false] : [true, true, false]);
    const {rows: [{n}]} = await pools[1].query('SELECT count(*)::int AS n FROM once.intent WHERE key = $1', [`${key}/2`]);
    assert.equal(n, 1);
  });
}

test('a slot that closes while a handler runs is a 503, and the handler is not called again', async (t) => {
  const once = new Once(nodes(pools), {logger: {error: () => {}}});
  let calls = 0;
  let closing;
  const service = http.createServer(once.http({scope: 'orders', tenant: () => TENANT}, async (req, res) => {
    calls++;
    await req.pgonce.tx.query('INSERT INTO effect (key) VALUES ($1)', [key]);
    closing = close(pools[0]);
    while ((await pools[0].query('SELECT open FROM once.slots() WHERE slot = $1', [slot])).rows[0].open) await new Promise((resolve) => setImmediate(resolve));
    res.end('done');
  })).listen(0, '127.0.0.1');
  await new Promise((resolve) => service.once('listening', resolve));
  t.after(() => service.close());
  const answer = await fetch(`http://127.0.0.1:${service.address().port}/`, {method: 'POST', headers: {'Idempotency-Key': key}, body: 'x'});
  assert.deepEqual([answer.status, (await answer.json()).type], [503, 'urn:pgonce:problem:unavailable']);
  await closing;
  assert.deepEqual([calls, await effects(pools[0])], [1, 0]);
});

test("a gateway's claim is finished at the node of its tenant", async (t) => {
  await close(pools[0]);
  await open(pools[1], 2);
  const {rows: [{fence}]} = await pools[1].query("SELECT fence FROM once.claim('orders', $1, once.fingerprint('x'::text, $2), tenant => $2)", [key, TENANT]);
  const once = new Once(nodes(pools));
  const service = http.createServer(once.http({scope: 'orders', tenant: () => TENANT, gateway: true}, async (req, res) => {
    await req.pgonce.tx.query('INSERT INTO effect (key) VALUES ($1)', [key]);
    res.end('done');
  })).listen(0, '127.0.0.1');
  await new Promise((resolve) => service.once('listening', resolve));
  t.after(() => service.close());
  const headers = {'Idempotency-Key': key, 'Once-Tenant': TENANT, 'Once-Scope': 'orders', 'Once-Key': encodeURIComponent(key), 'Once-Fence': String(fence)};
  const answer = await fetch(`http://127.0.0.1:${service.address().port}/`, {method: 'POST', headers, body: 'x'});
  assert.equal(answer.status, 200);
  const {rows: [{state}]} = await pools[1].query('SELECT state FROM once.intent WHERE key = $1', [key]);
  assert.deepEqual([state, await effects(pools[0]), await effects(pools[1])], ['succeeded', 0, 1]);
});
