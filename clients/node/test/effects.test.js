// SPDX-License-Identifier: PostgreSQL
// What an effect may do in its transaction, and what it may not: each way to send a statement with pg, its events, ids and mistakes. What all clients share is in spec/cases/faults.json.
'use strict';

const assert = require('node:assert/strict');
const nodeHttp = require('node:http');
const {after, before, beforeEach, test} = require('node:test');
const {randomUUID} = require('node:crypto');

const {Failed, InDoubt, Once} = require('..');
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

test('what serialization ends until the deadline is an error that may be retried', async () => {
  await assert.rejects(run(once, (tx) => tx.query("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$"), {deadlineMs: 100}),
    (error) => error.code === 'serialization' && error.retryable);
  assert.equal(await effects(), 0);
});

test('a cancellation never lands between the effect and its outcome', async () => {
  const controller = new AbortController();
  const result = await run(once, async (tx) => {
    await insert(tx);
    controller.abort(new Error('the client has left'));
  }, {signal: controller.signal});
  await assertDoneOnce(result);
  await assert.rejects(run(once, insert, {signal: controller.signal}), /the client has left/);
});

/** COMMIT past every check: pg lets an object send itself. */
function commitUnseen(tx) {
  return new Promise((resolve, reject) => {
    tx.query({
      submit: (connection) => connection.query('COMMIT'), handleRowDescription() {}, handleDataRow() {}, handleCommandComplete() {}, handleError: reject, handleReadyForQuery: resolve,
    });
  });
}

test('an effect that ends the transaction by itself is in doubt, and does not run again', async () => {
  const working = () => run(once, async (tx) => {
    await insert(tx);
    await commitUnseen(tx);
  });
  await assert.rejects(working(), (error) => error instanceof InDoubt && error.cause.sqlstate === 'P4012' && error.answer.errorCode === 'transaction_ended');
  await assert.rejects(working(), InDoubt);
  assert.equal(await effects(), 1);
});

test('a request whose handler has ended the transaction by itself is in doubt, and does not run again', async () => {
  const lines = [];
  const logging = new Once(pool, {logger: {error: (line) => lines.push(line)}});
  const app = nodeHttp.createServer(logging.http({scope: 'orders', tenant: false}, async (req, res) => {
    await insert(req.pgonce.tx);
    await commitUnseen(req.pgonce.tx);
    res.end('done');
  }));
  await new Promise((resolve) => app.listen(0, '127.0.0.1', resolve));
  for (let i = 0; i < 2; i++) {
    const answer = await fetch(`http://127.0.0.1:${app.address().port}/`, {method: 'POST', headers: {'Idempotency-Key': key}});
    assert.deepEqual([answer.status, (await answer.json()).type], [409, 'urn:pgonce:problem:in-doubt']);
  }
  app.closeAllConnections();
  await new Promise((resolve) => app.close(resolve));
  assert.equal(await effects(), 1);
  assert.match(lines.join(), /^pgonce: problem=in-doubt request=[0-9a-f]{32} scope=orders code=not_started /);
});

for (const [how, send] of [
  ['a text', (tx) => tx.query('COMMIT')], ['an object', (tx) => tx.query({text: 'COMMIT'})],
  ['a callback', (tx) => new Promise((resolve, reject) => tx.query('COMMIT', (error) => (error ? reject(error) : resolve())))],
]) {
  test(`an effect cannot end its transaction, nor by ${how}`, async () => {
    await assert.rejects(run(once, async (tx) => {
      await insert(tx);
      await send(tx);
    }), (error) => error.code === 'transaction_control');
    assert.equal(await effects(), 0);
    await assertDoneOnce(await run());
  });
}

test('a transaction within the effect is a savepoint of it', async () => {
  const row = (tx, suffix) => tx.query('INSERT INTO effect (key) VALUES ($1)', [`${key}${suffix}`]);
  await assertDoneOnce(await run(once, async (tx) => {
    await tx.query('BEGIN');
    await insert(tx);
    await tx.query('begin');
    await row(tx, '/inner');
    await assert.rejects(tx.query('SELECT 1/0'));
    await tx.query('ROLLBACK');
    await tx.query({text: 'BEGIN'});
    await row(tx, '/second');
    await tx.query('END');
    await tx.query('COMMIT');
    tx.release();
    await row(tx, '/third');
  }));
  const {rows} = await pool.query('SELECT key FROM effect WHERE key LIKE $1 ORDER BY key', [`${key}/%`]);
  assert.deepEqual(rows.map((each) => each.key.slice(key.length)), ['/second', '/third']);
  assert.equal(pool.totalCount, pool.idleCount);
});

test('what an effect sends after its transaction is refused to its callback and to emit, too', async () => {
  let leaked;
  await run(once, async (tx) => {
    leaked = tx;
    await insert(tx);
  });
  await assert.rejects(insert(leaked), (error) => error.code === 'not_in_transaction');
  assert.equal((await new Promise((resolve) => leaked.query('SELECT 1', resolve))).code, 'not_in_transaction');
  await assert.rejects(once.emit(leaked, 'late', {}), (error) => error.code === 'not_in_transaction');
  assert.equal(await effects(), 1);
});

test('what a handler sends after its answer is refused, and what it has sent before belongs to it', async () => {
  const late = new Promise((resolve, reject) => {
    const app = nodeHttp.createServer(once.http({scope: 'orders', tenant: false}, async (req, res) => {
      const first = insert(req.pgonce.tx); // not awaited, and before the answer all the same
      res.end('done');
      await first;
      resolve({app, late: insert(req.pgonce.tx).then(() => 'ran', (error) => error.code)});
    }));
    app.listen(0, '127.0.0.1', () => {
      nodeHttp.request({port: app.address().port, method: 'POST', headers: {'Idempotency-Key': key}}).on('response', (res) => res.resume().on('end', () => app.close())).on('error', reject).end();
    });
  });
  const told = await late;
  assert.equal(await told.late, 'not_in_transaction');
  await new Promise((resolve) => (told.app.listening ? told.app.once('close', resolve) : resolve()));
  assert.equal(await effects(), 1);
});

test('what an effect returns by mistake is refused before anything is stored', async () => {
  for (const mistake of [{order: 7}, 'done', 7, Buffer.from('x')]) {
    await assert.rejects(once.run('orders', key, {}, () => mistake), /put the value in body/);
  }
  await assert.rejects(once.run('orders', key, undefined, insert), /a request is needed/);
  assert.throws(() => new Once({}), /needs a Pool/);
});

test('emit, receive and lock refuse a pool, and a connection outside of a transaction', async () => {
  await assert.rejects(once.emit(pool, 'order.placed', {}), /not a pool/);
  const client = await pool.connect();
  try {
    await assert.rejects(once.emit(client, 'order.placed', {}), (error) => error.code === 'not_in_transaction');
  } finally {
    client.release();
  }
});

test('a delayed event is held until then, and an invalid time is refused', async () => {
  const notBefore = new Date('2090-10-29T01:30:00Z');
  await once.run('orders', key, {}, async (tx, {emit}) => {
    await emit(`${key} later`, {order: 7}, {notBefore});
    for (const wrong of [new Date('tomorrow'), '2090-10-29', 7]) {
      await assert.rejects(emit(`${key} wrong`, {}, {notBefore: wrong}), /notBefore must be a valid Date/);
    }
  }, {tenant: 'acme'});
  const {rows} = await pool.query('SELECT topic, tenant, scope, key, payload, not_before FROM once.delayed_event WHERE topic LIKE $1', [`${key} %`]);
  assert.deepEqual(rows, [{topic: `${key} later`, tenant: 'acme', scope: 'orders', key, payload: {order: 7}, not_before: notBefore}]);
  assert.deepEqual(await eventOf(`${key} later`), []);
});

test('an event of bytes is the intent\'s, and what is no bytes is refused before anything is sent', async () => {
  const all = Uint8Array.from({length: 256}, (_, n) => n);
  await once.run('orders', key, {}, async (tx, {emitBytes}) => {
    await emitBytes(`${key} view`, all.subarray(128), 'application/avro', {headers: {region: 'eu'}});
    await once.emitBytes(tx, `${key} none`, Buffer.from(all), 'application/avro', {scope: null, key: null});
    for (const [wrong, type, options, words] of [['text', 'a/b', {}, /a Buffer or another Uint8Array/], [[1], 'a/b', {}, /a Buffer or another Uint8Array/], [all.buffer, 'a/b', {}, /a Buffer or another Uint8Array/],
      [all, undefined, {}, /contentType is a string/], [all, 'a/b', {notBefore: new Date()}, /notBefore is for emit/]]) {
      await assert.rejects(emitBytes(`${key} wrong`, wrong, type, options), words);
    }
  }, {tenant: 'acme'});
  const {rows} = await pool.query('SELECT topic, tenant, scope, key, payload_bytes, content_type, headers FROM once.outbox WHERE topic LIKE $1 ORDER BY topic', [`${key} %`]);
  assert.deepEqual(rows, [
    {topic: `${key} none`, tenant: 'acme', scope: null, key: null, payload_bytes: Buffer.from(all), content_type: 'application/avro', headers: null},
    {topic: `${key} view`, tenant: 'acme', scope: 'orders', key, payload_bytes: Buffer.from(all.subarray(128)), content_type: 'application/avro', headers: {region: 'eu'}},
  ]);
});

const eventOf = async (topic) => (await pool.query('SELECT tenant, scope, key FROM once.outbox WHERE topic = $1', [topic])).rows;

test('an event is of the intent in whose attempt it is emitted, by each way to emit one', async () => {
  const by = {tenant: 'acme', scope: 'orders', key};
  await once.run('orders', key, {}, async (tx, within) => {
    await once.emit(tx, `${key} run`, {order: 7});
    await within.emit(`${key} within`, {order: 7});
    await once.emit(tx, `${key} of another`, {}, {scope: 'carts', key: 8, tenant: 'other'});
    await once.emit(tx, `${key} of none`, {}, {scope: null, key: null});
  }, {tenant: 'acme'});
  await once.consume('orders', key, {}, (tx) => once.emit(tx, `${key} consume`, {}), {tenant: 'beta'});
  const charge = once.effect({scope: 'orders', key, tenant: 'gamma'}, async () => {
    const client = await pool.connect();
    await client.query('BEGIN');
    await once.emit(client, `${key} effect`, {});
    await once.run('orders', `${key} inner`, {}, async (tx) => void (await once.emit(tx, `${key} nested`, {})));
    await client.query('COMMIT');
    client.release();
  });
  await charge();
  assert.deepEqual(await eventOf(`${key} run`), [by]);
  assert.deepEqual(await eventOf(`${key} within`), [by]);
  assert.deepEqual(await eventOf(`${key} of another`), [{tenant: 'other', scope: 'carts', key: '8'}]);
  assert.deepEqual(await eventOf(`${key} of none`), [{tenant: 'acme', scope: null, key: null}]);
  assert.deepEqual(await eventOf(`${key} consume`), [{...by, tenant: 'beta'}]);
  assert.deepEqual(await eventOf(`${key} effect`), [{...by, tenant: 'gamma'}]);
  assert.deepEqual(await eventOf(`${key} nested`), [{tenant: '', scope: 'orders', key: `${key} inner`}]);
});

test('an event of a protected request is of its intent, and one of an unprotected transaction of none', async () => {
  const app = nodeHttp.createServer(once.http({scope: 'orders', tenant: () => 42}, async (req, res) => {
    await once.emit(req.pgonce.tx, `${key} http`, {});
    res.end('done');
  }));
  await new Promise((resolve) => app.listen(0, '127.0.0.1', resolve));
  assert.equal((await fetch(`http://127.0.0.1:${app.address().port}/`, {method: 'POST', headers: {'Idempotency-Key': key}})).status, 200);
  app.closeAllConnections();
  await new Promise((resolve) => app.close(resolve));
  const client = await pool.connect();
  await client.query('BEGIN');
  await once.emit(client, `${key} alone`, {});
  await client.query('COMMIT');
  client.release();
  assert.deepEqual(await eventOf(`${key} http`), [{tenant: '42', scope: 'orders', key}]);
  assert.deepEqual(await eventOf(`${key} alone`), [{tenant: '', scope: null, key: null}]);
});

test('ids that are numbers are written out, in every call', async () => {
  const id = Math.trunc(Math.random() * 2 ** 40);
  const done = await once.run('numbers', id, {}, async (tx) => {
    await insert(tx);
    await once.emit(tx, `${key} number`, {}, {aggregateType: 'order', aggregateId: BigInt(id)});
    assert.equal(await once.lock(tx, id), true);
    return {status: 201, resultType: 'order', resultId: id};
  }, {tenant: 2n ** 60n});
  assert.deepEqual([done.replayed, done.resultId], [false, String(id)]);
  assert.equal((await once.run('numbers', String(id), {}, insert, {tenant: String(2n ** 60n)})).replayed, true);
  assert.deepEqual(await eventOf(`${key} number`), [{tenant: String(2n ** 60n), scope: 'numbers', key: String(id)}]);
  assert.deepEqual([await once.consume('numbers', id, {}, () => {}), await once.consume('numbers', String(id), {}, () => {})], ['process', 'duplicate']);
  const claimed = await once.claim('claims', id, {}, {tenant: 7});
  assert.equal(await claimed.complete({resultId: 7}), true);
  assert.equal((await once.claim('claims', String(id), {}, {tenant: '7'})).resultId, '7');
  const twice = once.effect({scope: 'effects', key: (order) => order, tenant: (order) => order}, (order, {tenant}) => [order, tenant]);
  assert.deepEqual([await twice(id), await twice(id)], [[id, String(id)], [id, String(id)]]);
  assert.equal(await effects(), 1);
});

test('what is no id is a TypeError that names the parameter, and the connection goes back', async () => {
  const few = poolOf(server, {max: 1});
  const one = new Once(few);
  const none = () => assert.fail('it ran');
  const within = (work) => one.run('numbers', `${key} within`, {}, async (tx) => void (await work(tx)));
  for (const bad of [NaN, 1.5, 2 ** 53, Infinity, true, {}, Symbol('x')]) {
    const calls = {
      key: [() => one.run('numbers', bad, {}, none), () => one.claim('numbers', bad, {}), () => one.effect({scope: 'numbers', key: () => bad, request: {}}, none)(),
        () => within((tx) => one.emit(tx, 'topic', {}, {key: bad}))],
      tenant: [() => one.run('numbers', key, {}, none, {tenant: bad}), () => one.effect({scope: 'numbers', key, tenant: () => bad, request: {}}, none)(),
        () => one.consume('numbers', key, {}, none, {tenant: bad}), () => within((tx) => one.emit(tx, 'topic', {}, {tenant: bad}))],
      message: [() => one.consume('numbers', bad, {}, none), () => within((tx) => one.receive(tx, 'numbers', bad, {}))],
      scope: [() => one.run(bad, key, {}, none)],
      consumer: [() => one.consume(bad, key, {}, none)],
      resource: [() => within((tx) => one.lock(tx, bad))],
      resultId: [() => one.run('numbers', key, {}, () => ({resultId: bad}))],
      aggregateId: [() => within((tx) => one.emit(tx, 'topic', {}, {aggregateId: bad}))],
    };
    for (const [parameter, tried] of Object.entries(calls)) {
      for (const call of tried) {
        await assert.rejects(call(), (error) => error instanceof TypeError && error.message.startsWith(`pgonce: ${parameter} is a string or an integer`), `${parameter} ${String(bad)}`);
      }
    }
    assert.throws(() => new Once(few, {tenant: bad}), TypeError);
  }
  for (const answer of [{body: {n: 7n}}, {headers: {n: 7n}}]) {
    await assert.rejects(one.run('numbers', key, {}, () => answer), TypeError);
    await assert.rejects(one.run('numbers', key, {}, () => Promise.reject(new Failed('x', 'x', answer))), TypeError);
  }
  await assert.rejects(within((tx) => one.emit(tx, 'topic', 7n)), TypeError);
  // A value that no check has seen is refused before anything is sent.
  await assert.rejects(one.run('numbers', key, {http: {method: 7, target: '/'}}, none), TypeError);
  assert.deepEqual([few.totalCount, few.idleCount], [1, 1]);
  assert.equal((await one.run('numbers', `${key} after`, {}, () => {})).replayed, false);
  await few.end();
});
