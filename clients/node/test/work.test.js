// SPDX-License-Identifier: PostgreSQL
// The function of once.effect, and what is told of trouble: the errors that it leaves, logs, the answers of error handlers, spans.
'use strict';

const assert = require('node:assert/strict');
const nodeHttp = require('node:http');
const {after, before, beforeEach, test} = require('node:test');
const {randomUUID} = require('node:crypto');

const {Failed, FinalFailure, InDoubt, LeaseLost, NotDone, Once, OnceError, keyOf} = require('..');
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
