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

const {Active, Failed, InDoubt, LeaseLost, NotDone, Once, OnceError, OutcomeUnknown, keyOfHeader} = require('..');
const {poolOf, startForwarder, startServer} = require('./support');

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

test('an effect that ends the transaction by itself is noticed: nothing guards it', async () => {
  await assert.rejects(run(once, async (tx) => {
    await insert(tx);
    await tx.query('COMMIT');
  }), (error) => error.sqlstate === 'P4012' && error.code === 'not_started');
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

test("an event bears its intent's name", async () => {
  await run(once, (tx, within) => within.emit('order.placed', {order: 7}));
  const {rows} = await pool.query('SELECT scope, payload FROM once.outbox WHERE key = $1', [key]);
  assert.deepEqual(rows, [{scope: 'orders', payload: {order: 7}}]);
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
  const declined = throwing('declined', new Failed('declined', 'card declined', {status: 402}));
  await assert.rejects(declined(), Failed);
  await assert.rejects(declined(), (error) => error.code === 'final_failure' && error.status === 402);
  const broken = throwing('broken', new Error('socket hang up'));
  await assert.rejects(broken(), /hang up/);
  await assert.rejects(broken(), InDoubt);
  const busy = throwing('busy', new NotDone('busy'));
  await assert.rejects(busy(), NotDone);
  await assert.rejects(busy(), NotDone);
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

test('keys are those of the vectors', () => {
  for (const vector of JSON.parse(fs.readFileSync(path.join(__dirname, '../../../tests/vectors/keys.json'))).keys) {
    const value = vector.header ?? Buffer.from(vector.base64 ?? '', 'base64').toString('latin1');
    const {key: found, fault} = keyOfHeader(value);
    assert.deepEqual([found, fault], [vector.key, vector.refused], value);
  }
});

test('fingerprints that the client computes are those of the vectors', () => {
  const {fingerprintOf, hashedOf} = require('../lib/fingerprint');
  const {salts, requests, bytes} = JSON.parse(fs.readFileSync(path.join(__dirname, '../../../tests/vectors/fingerprints.json')));
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

test('problems, headers and codes are those of the gateway and of the contract', async () => {
  const {PROBLEMS} = require('../lib/problem');
  const rows = JSON.parse(fs.readFileSync(path.join(__dirname, '../../conformance/problems.json'))).problems;
  for (const [slug, [status, title, detail, retryAfter = null]] of Object.entries(PROBLEMS)) {
    assert.deepEqual({status, title, detail, retryable: retryAfter !== null, retry_after: retryAfter}, rows[slug]);
  }
  const {KEPT, NEVER} = require('../lib/headers');
  const source = fs.readFileSync(path.join(__dirname, '../../../lib/http/headers.c'), 'utf8');
  const list = (name) => [...source.split(`${name}[] = {`)[1].split('};')[0].replace(/\/\*[^]*?\*\//g, '').matchAll(/"([^"]+)"/g)].map(([, text]) => text);
  assert.deepEqual([KEPT, NEVER], [list('kept_by_default'), list('never')]);
  const {ofSqlstate} = require('../lib/errors');
  const told = JSON.parse(fs.readFileSync(path.join(__dirname, '../../conformance/errors.json'))).errors;
  for (const {code, name, retry} of (await pool.query('SELECT * FROM once.errors()')).rows) {
    if (code === 'P4080') continue; // of relays
    const error = ofSqlstate(code, '');
    assert.ok(error instanceof OnceError);
    assert.deepEqual([error.code, error.retryable], [name, retry], code);
    assert.deepEqual({code: error.code, status: error.status, retryable: error.retryable}, told[code]);
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
