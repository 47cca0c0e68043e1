// SPDX-License-Identifier: PostgreSQL
// Backends that die at each step, acknowledgements that are lost, callers side by side, leases that end: the effect happens once, and nothing is guessed.
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const nodeHttp = require('node:http');
const net = require('node:net');
const path = require('node:path');
const {after, before, beforeEach, test} = require('node:test');
const {randomUUID} = require('node:crypto');

const {Pool} = require('pg');

const {Active, Failed, FinalFailure, InDoubt, LeaseLost, NotDone, Once, OnceError, OutcomeUnknown, keyOf, keyOfHeader} = require('..');
const {FAULTS, poolOf, startForwarder, startServer} = require('./support');

let server;
let forwarder;
let pool; // straight to the server
let far; // through the forwarder
let once;
let distant;
let key;

before(async () => {
  server = await startServer();
  forwarder = await startForwarder(server);
  pool = poolOf(server);
  far = poolOf(server, {port: forwarder.port, application_name: 'far'});
  [once, distant] = [new Once(pool), new Once(far)];
});

after(async () => {
  await Promise.all([pool.end(), far.end()]);
  await forwarder.program.close();
  await server.program.close();
});

beforeEach(async () => {
  key = `order:${randomUUID()}`;
  await forwarder.program.tell('forget');
});

const insert = (tx) => tx.query('INSERT INTO effect (key) VALUES ($1)', [key]);
const effects = async () => (await pool.query('SELECT count(*)::int AS n FROM effect WHERE key = $1', [key])).rows[0].n;
const kill = (tx) => pool.query('SELECT pg_terminate_backend($1)', [tx.processID]);
const run = (of = once, effect = insert, options) => of.run('orders', key, {cart: 7}, async (tx, within) => (await effect(tx, within), {status: 201, body: {order: 7}}), options);

async function assertDoneOnce(result) {
  assert.deepEqual([result.status, result.body.toString()], [201, '{"order":7}']);
  assert.equal(await effects(), 1);
  const again = await run();
  assert.deepEqual([again.replayed, again.status, again.body.toString()], [true, 201, '{"order":7}']);
  assert.equal(await effects(), 1);
}

for (const [what, rule] of [
  ['before the server has seen BEGIN and start', 'lose_request BEGIN'],
  ['after start, before its answer', 'lose_answer once.try_start'],
  ['before finish', 'lose_request once.finish'],
  ['before COMMIT', 'lose_request COMMIT'],
  ["with COMMIT's acknowledgement", 'lose_answer COMMIT'],
  ['and nobody waits for what becomes of COMMIT', 'lose_connection_after COMMIT'],
]) {
  test(`a connection that is lost ${what} costs no effect and makes none twice`, async () => {
    const {rule: number} = await forwarder.program.tell(rule);
    const result = await run(distant);
    assert.deepEqual(await forwarder.program.tell(`wait ${number}`), {fired: true});
    await assertDoneOnce(result);
  });
}

test('a lost acknowledgement of COMMIT is asked for on another connection: the effect is not called again', async () => {
  await forwarder.program.tell('lose_answer COMMIT');
  let calls = 0;
  const result = await run(distant, (tx) => (calls++, insert(tx)));
  assert.deepEqual([calls, result.replayed], [1, true]);
  await assertDoneOnce(result);
});

test('where nobody can be asked after a lost COMMIT, the outcome is unknown, and never guessed', async () => {
  await forwarder.program.tell('lose_answer COMMIT');
  await assert.rejects(
    run(distant, async (tx) => {
      await insert(tx);
      far.connect = () => Promise.reject(new Error('no way'));
    }, {deadlineMs: 300}).finally(() => delete far.connect),
    (error) => error instanceof OutcomeUnknown && error.retryable && error.code === 'outcome_unknown',
  );
  await assertDoneOnce(await run());
});

test('a backend that is killed during the effect: the effect runs again, and happens once', async () => {
  let calls = 0;
  const result = await run(once, async (tx) => {
    await insert(tx);
    if (calls++ === 0) {
      await kill(tx);
      await tx.query('SELECT 1');
    }
  });
  assert.equal(calls, 2);
  await assertDoneOnce(result);
});

test('a backend that is killed between the effect and finish', async () => {
  let calls = 0;
  await assertDoneOnce(await run(once, async (tx) => {
    await insert(tx);
    if (calls++ === 0) await kill(tx);
  }));
});

test('a race that serialization ends is run again', async () => {
  let calls = 0;
  await assertDoneOnce(await run(once, async (tx) => {
    await insert(tx);
    if (calls++ < 2) await tx.query("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$");
  }));
  assert.equal(calls, 3);
});

test('what serialization ends until the deadline is an error that may be retried', async () => {
  await assert.rejects(run(once, (tx) => tx.query("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$"), {deadlineMs: 100}),
    (error) => error.code === 'serialization' && error.retryable);
  assert.equal(await effects(), 0);
});

test('64 callers of one key make one effect, and get one answer', async () => {
  const wide = poolOf(server, {max: 64});
  const results = await Promise.all(Array.from({length: 64}, () => run(new Once(wide), async (tx) => {
    await insert(tx);
    await tx.query('SELECT pg_sleep(0.05)');
  }, {waitMs: 20000})));
  await wide.end();
  assert.equal(results.filter((each) => !each.replayed).length, 1);
  assert.equal(new Set(results.map((each) => each.body.toString())).size, 1);
  assert.equal(await effects(), 1);
});

test('at every level of isolation a race has one effect', async () => {
  for (const isolation of ['repeatable read', 'serializable']) {
    key = `order:${randomUUID()}`;
    await Promise.all(Array.from({length: 8}, () => run(once, insert, {isolation, waitMs: 20000})));
    assert.equal(await effects(), 1);
  }
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

for (const text of ['COMMIT', 'commit;', '/* a */ end', 'ROLLBACK', 'abort', 'INSERT INTO effect (key) VALUES (NULL); COMMIT', "PREPARE TRANSACTION 'x'", 'START TRANSACTION ISOLATION LEVEL SERIALIZABLE']) {
  test(`an effect cannot end its transaction: ${text}`, async () => {
    for (const send of [(tx) => tx.query(text), (tx) => tx.query({text}), (tx) => new Promise((resolve, reject) => tx.query(text, (error) => (error ? reject(error) : resolve())))]) {
      await assert.rejects(run(once, async (tx) => {
        await insert(tx);
        await send(tx);
      }), (error) => error.code === 'transaction_control');
    }
    assert.equal(await effects(), 0);
    await assertDoneOnce(await run());
  });
}

test('what only looks like the end of a transaction is a statement like any other', async () => {
  await assertDoneOnce(await run(once, async (tx) => {
    await insert(tx);
    for (const text of ["SELECT 'COMMIT'", '-- COMMIT\nSELECT 1', 'SELECT $a$ ; COMMIT ; $a$', 'SAVEPOINT a', 'ROLLBACK TO SAVEPOINT a', 'PREPARE a AS SELECT 1', 'SELECT 1 AS "commit"']) await tx.query(text);
  }));
});

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

test('an effect under another role is finished under its own', async () => {
  await pool.query('DO $$ BEGIN CREATE ROLE nobody_special; EXCEPTION WHEN duplicate_object THEN NULL; END $$; GRANT INSERT ON effect TO nobody_special');
  await assertDoneOnce(await run(once, async (tx) => {
    await tx.query('SET LOCAL ROLE nobody_special');
    await insert(tx);
  }));
});

test('a deferred constraint that fails at COMMIT is an error, and nothing happened', async () => {
  await pool.query('CREATE TABLE once_only (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)');
  await pool.query('INSERT INTO once_only VALUES (1)');
  await assert.rejects(run(once, async (tx) => {
    await insert(tx);
    await tx.query('INSERT INTO once_only VALUES (1)');
  }), (error) => error.code === '23505');
  assert.equal(await effects(), 0);
  await assertDoneOnce(await run());
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

test('an error tells no key: not its text, not what it was caused by', async () => {
  await run();
  const error = await once.run('orders', key, {cart: 8}, insert).catch((failure) => failure);
  assert.ok(!require('node:util').inspect(error, {depth: 9, showHidden: true}).includes(key));
});

test('a lease is renewed while the work goes on', {timeout: 20000}, async () => {
  const claim = await once.claim('charges', key, {}, {leaseMs: 3000});
  const first = (await pool.query("SELECT lease_until FROM once.peek('charges', $1)", [key])).rows[0].lease_until;
  let now = first;
  while (now <= first) now = (await pool.query("SELECT lease_until, pg_sleep(0.05) FROM once.peek('charges', $1)", [key])).rows[0].lease_until;
  await assert.rejects(once.claim('charges', key, {}), Active);
  assert.equal(claim.signal.aborted, false);
  assert.equal(await claim.complete({status: 200, body: 'charged'}), true);
});

test('a lease that is lost aborts the signal, and the report is refused', {timeout: 20000}, async () => {
  const claim = await once.claim('charges', key, {}, {leaseMs: 300});
  const lost = new Promise((resolve) => claim.signal.addEventListener('abort', resolve, {once: true}));
  claim.signal.throwIfAborted();
  await pool.query("SELECT once.fail('charges', $1, $2, true)", [key, claim.fence]);
  const other = await once.claim('charges', key, {});
  await lost;
  assert.ok(claim.signal.reason instanceof LeaseLost);
  await assert.rejects(claim.complete({}), (error) => error.code === 'completion_refused');
  assert.equal(await other.complete({}), true);
});

test('a claim whose answer is lost is found again', async () => {
  await forwarder.program.tell('lose_answer once.claim');
  const claim = await distant.claim('charges', key, {});
  assert.equal(claim.verdict, 'new_claim');
  await forwarder.program.tell('lose_answer once.complete');
  assert.equal(await claim.complete({status: 200}), false); // this very report was stored already
});

for (const fault of FAULTS.claims) {
  test(`a claim whose reply is lost says what was before it: ${fault.name}`, async () => {
    for (const sql of fault.arrange) await pool.query(sql);
    const {rule} = await forwarder.program.tell('lose_answer once.claim');
    const claim = await distant.claim('faults', fault.name, {}, {takeover: fault.takeover});
    assert.deepEqual([claim.verdict, claim.fence], [fault.verdict, fault.fence]);
    assert.equal(await claim.complete({status: 201}), true);
    assert.deepEqual(await forwarder.program.tell(`wait ${rule}`), {fired: true});
  });
}

test('once.effect: a function runs at most once for its key, and its result is replayed', async () => {
  let calls = 0;
  const charge = once.effect({scope: 'charges', key: (order) => `${key}/${order}`}, async (order, {signal}) => {
    calls++;
    return {order, aborted: signal.aborted};
  });
  assert.deepEqual(await charge('a'), {order: 'a', aborted: false});
  assert.deepEqual(await charge('a'), {order: 'a', aborted: false});
  assert.equal(calls, 1);
});

test('once.effect: what failed for good stays failed; what is not known is in doubt; what was not done may run', async () => {
  const throwing = (name, error) => once.effect({scope: 'charges', key: `${key}/${name}`}, () => {
    throw error;
  });
  const told = async (name) => (await pool.query("SELECT state::text, error_code, error_message FROM once.peek('charges', $1)", [`${key}/${name}`])).rows[0];
  const failed = new Failed('declined', 'card declined', {status: 402, body: {error: 'declined'}});
  const declined = throwing('declined', failed);
  for (const replayed of [false, true, true]) {
    await assert.rejects(declined(), (error) => {
      const {answer} = error;
      assert.ok(error instanceof FinalFailure);
      assert.deepEqual([error.code, error.status, error.replayed, error.cause], ['final_failure', 402, replayed, replayed ? undefined : failed]);
      assert.deepEqual([answer.status, answer.body.toString(), answer.errorCode, answer.errorMessage], [402, '{"error":"declined"}', 'declined', 'card declined']);
      return true;
    });
  }
  assert.deepEqual(await told('declined'), {state: 'failed_final', error_code: 'declined', error_message: 'card declined'});
  const broken = throwing('broken', Object.assign(new TypeError('fetch failed'), {cause: Object.assign(new Error('socket hang up'), {code: 'ECONNRESET'})}));
  for (const cause of ['fetch failed', undefined]) {
    await assert.rejects(broken(), (error) => {
      assert.ok(error instanceof InDoubt);
      assert.deepEqual([error.cause?.message, error.answer.errorCode, error.answer.errorMessage], [cause, 'ECONNRESET', 'fetch failed: socket hang up']);
      return true;
    });
  }
  assert.deepEqual(await told('broken'), {state: 'in_doubt', error_code: 'ECONNRESET', error_message: 'fetch failed: socket hang up'});
  const long = throwing('long', new RangeError('a\0'.repeat(100000)));
  await assert.rejects(long(), (error) => error.cause instanceof RangeError);
  assert.deepEqual(await told('long'), {state: 'in_doubt', error_code: 'RangeError', error_message: 'a?'.repeat(500)});
  const strange = throwing('strange', 'a string');
  await assert.rejects(strange(), (error) => error.cause === 'a string');
  assert.equal((await told('strange')).error_message, 'a string');
  const unstorable = once.effect({scope: 'charges', key: `${key}/unstorable`}, () => 7n);
  await assert.rejects(unstorable(), (error) => error instanceof InDoubt && error.cause instanceof TypeError);
  await assert.rejects(unstorable(), InDoubt);
  assert.equal((await told('unstorable')).error_code, 'answer_not_stored');
  const busy = throwing('busy', new NotDone('busy'));
  await assert.rejects(busy(), NotDone);
  await assert.rejects(busy(), NotDone);
  assert.deepEqual(await told('busy'), {state: 'failed_retryable', error_code: 'not_done', error_message: 'busy'});
});

test('where it cannot be stored how the work ended, it is in doubt, and that is logged', async () => {
  const lines = [];
  const logging = new Once(pool, {logger: {error: (line) => lines.push(line)}});
  const stolen = logging.effect({scope: 'charges', key, request: {}}, async (_, {fence}) => {
    await pool.query("SELECT once.complete('charges', $1, $2)", [key, fence]);
    throw new Error('socket hang up');
  });
  await assert.rejects(stolen({}), (error) => error instanceof InDoubt && error.cause.message === 'socket hang up');
  assert.equal(lines.length, 1);
  assert.match(lines[0], /^pgonce: how an attempt ended could not be stored: code=failure_refused /);
  assert.ok(!lines[0].includes(key));
  assert.throws(() => new Once(pool, {logger: {}}), TypeError);
});

test('why a request got a 503 is logged, under the name that its document gives it', async () => {
  const lines = [];
  const away = poolOf(server, {host: '/nowhere', port: 1});
  const logging = new Once(away, {logger: {error: (line) => lines.push(line)}});
  const app = nodeHttp.createServer(logging.http({scope: 'orders', tenant: false}, () => assert.fail('it ran')));
  await new Promise((resolve) => app.listen(0, '127.0.0.1', resolve));
  const answer = await fetch(`http://127.0.0.1:${app.address().port}/`, {method: 'POST', headers: {'Idempotency-Key': key}});
  const document = await answer.json();
  app.closeAllConnections();
  await new Promise((resolve) => app.close(resolve));
  await away.end();
  assert.equal(answer.status, 503);
  assert.match(document.instance, /^urn:pgonce:request:[0-9a-f]{32}$/);
  assert.equal(lines.length, 1);
  assert.match(lines[0], new RegExp(`^pgonce: problem=unavailable request=${document.instance.slice(-32)} scope=orders code=connection error=".*ENOENT`));
  assert.ok(!lines[0].includes(key));
});

test('what a call throws has the answer that the gateway would give', async () => {
  const lines = [];
  const logging = new Once(pool, {logger: {error: (line) => lines.push(line)}});
  const told = (error) => {
    const answer = logging.answerOf(error);
    return answer && [answer.status, answer.headers.find(([name]) => name === 'Retry-After')?.[1], JSON.parse(answer.body).type?.split(':').at(-1)];
  };
  const req = (...keys) => ({rawHeaders: keys.flatMap((each) => ['idempotency-KEY', each])});
  const thrown = (work) => {
    try {
      return work();
    } catch (error) {
      return error;
    }
  };
  assert.equal(keyOf({raw: req('"a"')}), 'a');
  assert.deepEqual(told(thrown(() => keyOf(req()))), [400, undefined, 'key-missing']);
  assert.deepEqual(told(thrown(() => keyOf(req('a', 'a')))), [400, undefined, 'key-repeated']);
  assert.deepEqual(told(thrown(() => keyOf(req('a b')))), [400, undefined, 'key-malformed']);
  assert.deepEqual(told(thrown(() => keyOf(req('a'), {strict: true}))), [400, undefined, 'key-malformed']);
  const {ofSqlstate, ofConnection, ofVerdict, unknown} = require('../lib/errors');
  for (const [error, status, retry, slug] of [
    [ofSqlstate('P4001'), 400, undefined, 'key-malformed'], [ofSqlstate('P4002'), 422, undefined, 'mismatch'], [ofSqlstate('P4003'), 403, undefined, 'refused'],
    [ofSqlstate('P4029'), 409, '1', 'active'], [ofSqlstate('P4031'), 409, undefined, 'in-doubt'], [ofSqlstate('P4041'), 409, undefined, 'expired'],
    [ofSqlstate('P4010'), 503, '5', 'not-stored'], [ofSqlstate('P4011'), 503, '5', 'not-stored'], [unknown(), 503, '5', 'not-stored'],
    [new LeaseLost('lease_lost', 'x', {status: 503}), 503, '5', 'not-stored'], [ofConnection(), 503, '5', 'unavailable'], [ofSqlstate('P4098', 'x'), 503, '5', 'unavailable'],
    [new NotDone('x'), 502, '5', 'unreached'],
  ]) {
    lines.length = 0;
    assert.deepEqual(told(error), [status, retry, slug], slug);
    assert.equal(lines.length, status >= 500 ? 1 : 0, slug);
  }
  for (const error of [new Error('x'), new TypeError('x'), 'x', ofSqlstate('P4012', 'x'), ofSqlstate('P4060', 'x')]) assert.equal(told(error), undefined);
  assert.equal(JSON.parse(logging.answerOf(ofSqlstate('P4029'), {problemBase: 'https://shop.test/#'}).body).type, 'https://shop.test/#active');

  // The trace goes with the problem, as the gateway's: not with a mismatch, whoever asks has sent another request.
  const traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
  for (const [verdict, trace] of [['processing_active', traceparent], ['in_doubt', traceparent], ['expired', traceparent], ['final_failure', traceparent], ['mismatch', undefined]]) {
    const answer = logging.answerOf(ofVerdict({verdict, answer: {status: verdict === 'in_doubt' ? 500 : null}, traceparent}));
    assert.equal(Object.fromEntries(answer.headers)['Idempotency-Traceparent'], trace, verdict);
    assert.equal(JSON.parse(answer.body).detail.endsWith('The service answered 500, which does not say whether the effect happened.'), verdict === 'in_doubt');
  }
});

test('an error handler of Express leaves what others have set for every answer, and errors of others to others', async () => {
  const app = require('express')();
  app.use((req, res, next) => {
    res.set({'Access-Control-Allow-Origin': '*', 'Content-Encoding': 'x', ETag: '"x"'});
    next();
  });
  app.get('/doubt', () => Promise.reject(new InDoubt('in_doubt', 'x', {status: 409})));
  app.get('/other', () => Promise.reject(new Error('x')));
  app.use(once.problems());
  app.use((error, req, res, _next) => {
    res.removeHeader('Content-Encoding');
    res.status(418).end(error.message);
  });
  const at = await new Promise((resolve) => {
    const listening = app.listen(0, '127.0.0.1', () => resolve(listening));
  });
  const ask = (path) => fetch(`http://127.0.0.1:${at.address().port}${path}`);
  const doubt = await ask('/doubt');
  assert.deepEqual([doubt.status, (await doubt.json()).status], [409, 409]);
  const headers = ['Access-Control-Allow-Origin', 'Content-Encoding', 'ETag', 'Content-Type'].map((name) => doubt.headers.get(name));
  assert.deepEqual(headers, ['*', null, null, 'application/problem+json']);
  assert.equal((await ask('/other')).status, 418);
  at.closeAllConnections();
  await new Promise((resolve) => at.close(resolve));
});

test('an answer that does not say what was done leaves a doubt that says so', async () => {
  const app = nodeHttp.createServer(once.http({scope: 'orders', tenant: false}, (req, res) => res.writeHead(500, {'Once-Effect': 'unknown'}).end('who knows')));
  await new Promise((resolve) => app.listen(0, '127.0.0.1', resolve));
  assert.equal((await fetch(`http://127.0.0.1:${app.address().port}/`, {method: 'POST', headers: {'Idempotency-Key': key}})).status, 500);
  app.closeAllConnections();
  await new Promise((resolve) => app.close(resolve));
  const {rows} = await pool.query("SELECT state::text, error_code, error_message, response_status FROM once.peek('orders', $1)", [key]);
  assert.deepEqual(rows, [{state: 'in_doubt', error_code: 'upstream_status', error_message: 'the answer does not say whether the effect happened', response_status: 500}]);
});

test('a client that leaves does not stop its request: a retry gets the answer', async () => {
  let leave;
  let stored;
  const done = new Promise((resolve) => {
    stored = resolve;
  });
  const app = nodeHttp.createServer(once.http({scope: 'orders', tenant: false}, async (req, res) => {
    await insert(req.pgonce.tx);
    leave?.();
    await new Promise((resolve) => setImmediate(resolve));
    res.end('done');
    stored();
  }));
  await new Promise((resolve) => app.listen(0, '127.0.0.1', resolve));
  const ask = () => nodeHttp.request({port: app.address().port, method: 'POST', headers: {'Idempotency-Key': key}});
  const first = ask();
  leave = () => first.destroy();
  first.on('error', () => {});
  first.end();
  await done;
  leave = undefined;
  let answer = 'active';
  while (answer.includes('active')) {
    answer = await new Promise((resolve) => ask().on('response', async (res) => resolve((await res.toArray()).join(''))).end());
  }
  app.closeAllConnections();
  await new Promise((resolve) => app.close(resolve));
  assert.equal(answer, 'done');
  assert.equal(await effects(), 1);
});

test("the middleware asks after a lost acknowledgement of COMMIT, and gives the answer that is stored", async () => {
  let calls = 0;
  const app = nodeHttp.createServer(distant.http({scope: 'orders', tenant: false}, async (req, res) => {
    calls++;
    await insert(req.pgonce.tx);
    res.end('done');
  }));
  await new Promise((resolve) => app.listen(0, '127.0.0.1', resolve));
  const ask = async () => {
    const answer = await fetch(`http://127.0.0.1:${app.address().port}/`, {method: 'POST', headers: {'Idempotency-Key': key}});
    return [answer.status, await answer.text()];
  };
  for (const [rule, status] of [['lose_answer COMMIT', 200], ['lose_request COMMIT', 503], ['lose_request once.finish', 503]]) {
    key = `order:${randomUUID()}`;
    calls = 0;
    await forwarder.program.tell(rule);
    const first = await ask();
    assert.equal(first[0], status, rule);
    assert.deepEqual(await ask(), [200, 'done'], rule);
    assert.equal(await effects(), 1, rule);
  }
  app.closeAllConnections();
  await new Promise((resolve) => app.close(resolve));
});

test('a connection that is lost while a too large answer is made smaller: one effect, which is remembered', async () => {
  await pool.query("SELECT once.set_scope('kept-8192', response_bytes_max => 8192)");
  const large = 'x'.repeat(8193);
  const app = nodeHttp.createServer(distant.http({scope: 'kept-8192', tenant: false}, async (req, res) => {
    await insert(req.pgonce.tx);
    res.end(large);
  }));
  await new Promise((resolve) => app.listen(0, '127.0.0.1', resolve));
  const ask = async () => {
    const answer = await fetch(`http://127.0.0.1:${app.address().port}/`, {method: 'POST', headers: {'Idempotency-Key': key}});
    const text = await answer.text();
    return text === large ? 'whole' : JSON.parse(text).type.split(':').at(-1);
  };
  for (const [rule, told] of [['lose_request', ['unavailable', 'whole', 'too-large']], ['lose_answer', ['too-large', 'too-large', 'too-large']]]) {
    key = `order:${randomUUID()}`;
    await forwarder.program.tell(`${rule} ROLLBACK TO SAVEPOINT once_store`);
    assert.deepEqual([await ask(), await ask(), await ask()], told, rule);
    assert.equal(await effects(), 1, rule);
  }
  app.closeAllConnections();
  await new Promise((resolve) => app.close(resolve));
});

test('BEGIN and start go in one round trip, finish and COMMIT in one', async () => {
  const client = await pool.connect();
  const {release} = client;
  let trips = 0;
  client.connection.on('readyForQuery', () => trips++);
  const one = new Once(Object.assign(Object.create(pool), {connect: async () => Object.assign(client, {release() {}})}));
  await run(one);
  release.call(client, true);
  assert.equal(trips, 3); // with the effect's own
});

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
  assert.deepEqual(await names(), ['BEGIN', 'COMMIT', 'ROLLBACK', 'SAVEPOINT', 'once.finish', 'once.try_start']);
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

test('what an answer says of its effect is what spec/statuses.json says', () => {
  const [guard, lease] = [require('../lib/guard'), require('../lib/lease')];
  const named = {done: 'stored', refused: 'refused', none: 'released', unknown: 'in_doubt'};
  for (const {statuses, headers = [], said, ...meant} of JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/statuses.json'))).cases) {
    for (const status of statuses) {
      const answer = {status, pairs: headers.map((name) => [name, '1']), effect: said === undefined ? [] : [said]};
      assert.deepEqual({transaction: named[guard.effectOf(answer)], elsewhere: named[lease.effectOf(answer)]}, meant, JSON.stringify(answer));
    }
  }
});

test('problem documents are those of spec/problems.json, byte for byte', () => {
  const {problem} = require('../lib/problem');
  const {cases} = JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/problems.json')));
  assert.ok(cases.length > 4);
  for (const {problem: slug, more, document} of cases) {
    const made = problem(slug, {more});
    assert.equal(made.body.toString().replace(made.request, '0123456789abcdef0123456789abcdef'), document);
  }
});

test('a base of problem types that would break the document is refused when it is set', () => {
  const {checkBase} = require('../lib/problem');
  const {type_bases: {good, bad}} = JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/problems.json')));
  for (const base of good) assert.equal(checkBase(base), base);
  for (const base of [...bad, 7]) {
    assert.throws(() => once.express({scope: 'orders', tenant: false, problemBase: base}), /problemBase/, base);
    assert.throws(() => once.problems({problemBase: base}), /problemBase/, base);
    assert.throws(() => once.answerOf(new OnceError('active', 'x', {sqlstate: 'P4029'}), {problemBase: base}), /problemBase/, base);
  }
});

test('keys are those of the vectors', () => {
  const {faults} = JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/keys.json')));
  for (const vector of JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/vectors/keys.json'))).keys) {
    const value = vector.header ?? Buffer.from(vector.base64 ?? '', 'base64').toString('latin1');
    const {key: found, fault} = keyOfHeader(value);
    assert.deepEqual([found, fault], [vector.key, vector.refused], value);
    const strict = keyOfHeader(value, {strict: true});
    if (/^ *"/.test(value)) assert.deepEqual([strict.key, strict.fault], [vector.key, vector.refused], value);
    else assert.ok([vector.refused, faults.not_a_string].includes(strict.fault) && strict.key === undefined, value);
  }
});

test('fingerprints that the client computes are those of the vectors', () => {
  const {fingerprintOf, hashedOf} = require('../lib/fingerprint');
  const {salts, requests, bytes} = JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/vectors/fingerprints.json')));
  const bodyOf = ({text, base64}) => (text === undefined ? Buffer.from(base64 ?? '', 'base64') : text);
  const same = (vector, request) =>
    assert.equal(fingerprintOf(Buffer.from(salts[vector.tenant], 'hex'), hashedOf(request)).toString('hex'), vector.fingerprint, JSON.stringify(vector));
  const plain = requests.filter((each) => !each.canonical_json);
  for (const each of plain) same(each, {http: {method: each.method, target: each.target, contentType: each.content_type, body: bodyOf(each)}});
  for (const each of bytes) same(each, bodyOf(each));
  assert.ok(plain.length > 10 && bytes.length > 3);
  assert.equal(hashedOf({http: {method: 'POST', target: '/', body: '', canonicalJson: true}}), null);
});

test('a salt that was replaced, as by a contract that is installed anew, makes no retry a mismatch', async () => {
  const of = (pool_, name) => new Once(pool_).run('orders', name, Buffer.from('request'), () => ({status: 201}));
  const old = (await pool.query("SELECT encode(salt, 'hex') AS salt FROM once.setting")).rows[0].salt;
  const other = poolOf(server);
  try {
    await of(pool, key);
    await pool.query('UPDATE once.setting SET salt = sha256(salt)');
    assert.equal((await of(other, `${key}2`)).replayed, false);
    assert.equal((await of(pool, `${key}2`)).replayed, true);
  } finally {
    await pool.query("UPDATE once.setting SET salt = decode($1, 'hex')", [old]);
    await other.end();
  }
});

test('a call is a span, a count and a duration with its verdict, and never its key', async () => {
  const api = require('@opentelemetry/api');
  const spans = [];
  const counted = [];
  class Span {
    constructor(name, attributes) {
      Object.assign(this, {name, attributes});
    }
    spanContext() {
      return {traceId: 'a'.repeat(32), spanId: 'b'.repeat(16), traceFlags: 1};
    }
    setAttribute(name, value) {
      this.attributes = {...this.attributes, [name]: value};
    }
    setStatus(status) {
      this.status = status;
    }
    end() {
      spans.push(this);
    }
  }
  const instrument = (name) => ({add: (value, labels) => counted.push([name, value, labels]), record: (value, labels) => counted.push([name, typeof value, labels])});
  api.trace.setGlobalTracerProvider({getTracer: () => ({startActiveSpan: (name, {attributes}, work) => work(new Span(name, attributes))})});
  api.metrics.setGlobalMeterProvider({getMeter: () => ({createCounter: instrument, createHistogram: instrument})});
  try {
    await run();
    await run();
    await assert.rejects(once.run('orders', key, 'other', insert), OnceError);
    await assert.rejects(once.run('orders', `${key}2`, {}, () => Promise.reject(new Error(key))), Error);
  } finally {
    api.trace.disable();
    api.metrics.disable();
  }
  const labels = ['proceed', 'replay', 'mismatch', 'error'].map((verdict) => ({'pgonce.kind': 'run', 'pgonce.scope': 'orders', 'pgonce.verdict': verdict}));
  assert.deepEqual(spans.map(({name, attributes}) => [name, attributes]), labels.map((each) => ['pgonce.run', each]));
  assert.deepEqual(spans.map(({status}) => status?.code), [undefined, undefined, api.SpanStatusCode.ERROR, api.SpanStatusCode.ERROR]);
  assert.deepEqual(counted, labels.flatMap((each) => [['pgonce.calls', 1, each], ['pgonce.duration', 'number', each]]));
  assert.ok(!JSON.stringify([spans, counted]).includes(key));
});

test("the version is the release's", () => {
  const [, version] = fs.readFileSync(path.join(__dirname, '../../../meson.build'), 'utf8').match(/^ {2}version: '([^']+)'/m);
  assert.equal(require('../package.json').version, version);
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

test('what an effect sends after its transaction is refused: the connection is the next one\'s by then', async () => {
  let leaked;
  await run(once, async (tx) => {
    leaked = tx;
    await insert(tx);
  });
  await assert.rejects(insert(leaked), (error) => error.code === 'not_in_transaction');
  assert.equal((await new Promise((resolve) => leaked.query('SELECT 1', resolve))).code, 'not_in_transaction');
  await assert.rejects(once.emit(leaked, 'late', {}), (error) => error.code === 'not_in_transaction');
  await once.consume('late', key, {}, async (tx) => {
    leaked = tx;
  });
  await assert.rejects(insert(leaked), (error) => error.code === 'not_in_transaction');
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

test('a renewal that hangs loses the lease in time', async () => {
  const narrow = poolOf(server, {max: 1});
  const held = await new Once(narrow).claim('leases', key, {}, {leaseMs: 1500});
  const taken = await narrow.connect(); // the only one: the renewal waits for it
  const began = performance.now();
  await new Promise((resolve) => held.signal.addEventListener('abort', resolve));
  assert.ok(performance.now() - began < 15000 && held.signal.reason instanceof LeaseLost);
  taken.release();
  await narrow.end();
});
