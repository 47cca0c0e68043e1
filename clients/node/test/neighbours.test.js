// SPDX-License-Identifier: PostgreSQL
// Our place among other middleware and hooks: what stands around it keeps its part, and what cannot be is refused with an error that says what to write.
'use strict';

const assert = require('node:assert/strict');
const {randomUUID} = require('node:crypto');
const http = require('node:http');
const net = require('node:net');
const {after, before, beforeEach, test} = require('node:test');
const zlib = require('node:zlib');

const compression = require('compression');
const express = require('express');
const fastify = require('fastify');

const {Once, rawBody} = require('..');
const {poolOf, startServer} = require('./support');

let server;
let pool;
let once;
let key;

before(async () => {
  server = await startServer();
  pool = poolOf(server, {max: 4});
  once = new Once(pool, {logger: {error: () => {}}});
  await pool.query('CREATE TABLE once_only (id int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO once_only VALUES (1)');
});

after(async () => {
  await pool.end();
  await server.program.close();
});

beforeEach(() => {
  key = `k${randomUUID()}`;
});

const ORDERS = {scope: 'orders', tenant: (request) => request.user};
const insert = (request) => request.pgonce.tx.query('INSERT INTO effect (key) VALUES ($1)', [key]);
const effects = async () => (await pool.query('SELECT count(*)::int AS n FROM effect WHERE key = $1', [key])).rows[0].n;

async function serving(t, app) {
  const listening = app.listen ? http.createServer(app) : app;
  await new Promise((resolve) => listening.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    listening.closeAllConnections();
    return new Promise((resolve) => listening.close(resolve));
  });
  return listening.address().port;
}

/** app: a Fastify with its routes. */
async function servingFastify(t, app) {
  await app.listen({port: 0, host: '127.0.0.1'});
  t.after(() => app.close());
  return app.server.address().port;
}

async function ask(port, {body = '{"a": 1}', path = '/', headers = {}} = {}) {
  const answer = await fetch(`http://127.0.0.1:${port}${path}`, {method: 'POST', body, headers: {'Idempotency-Key': key, 'Content-Type': 'application/json', ...headers}});
  return {status: answer.status, headers: answer.headers, text: await answer.text()};
}

for (const place of ['outside', 'inside']) {
  test(`compression ${place} of ours compresses the first answer and the replay`, async (t) => {
    const app = express();
    const ours = once.express({scope: 'orders', tenant: false});
    app.use(...(place === 'outside' ? [compression({threshold: 0}), ours] : [ours, compression({threshold: 0})]));
    app.post('/', async (req, res) => {
      await insert(req);
      res.type('text/plain').send('compress me '.repeat(100));
    });
    const port = await serving(t, app);
    const raw = () => new Promise((resolve, reject) => {
      http.request({port, host: '127.0.0.1', method: 'POST', headers: {'Idempotency-Key': key, 'Accept-Encoding': 'gzip'}}, async (res) => {
        resolve([res.headers['content-encoding'], res.headers['idempotency-replayed'], zlib.gunzipSync(Buffer.concat(await res.toArray())).toString()]);
      }).on('error', reject).end();
    });
    assert.deepEqual(await raw(), ['gzip', undefined, 'compress me '.repeat(100)]);
    assert.deepEqual(await raw(), ['gzip', 'true', 'compress me '.repeat(100)]);
    assert.equal(await effects(), 1);
  });
}

// Fastify 5 runs in Node 18 but for this.
const INJECTS = {skip: Number(process.versions.node.split('.')[0]) < 20 && 'app.inject of Fastify 5 needs Node 20'};

test('headers that outer middleware has set are on refusals and replays, and those of the answer are there once', async (t) => {
  const app = express();
  app.use((req, res, next) => {
    res.set({'Access-Control-Allow-Origin': req.get('Origin'), Vary: 'Origin', 'Content-Language': 'de', 'X-Frame-Options': 'DENY'});
    next();
  });
  app.post('/', once.express({scope: 'orders', tenant: false}), async (req, res) => {
    await insert(req);
    res.append('Link', '</a>').append('Link', '</b>').json({});
  });
  const port = await serving(t, app);
  const of = async (request) => {
    const {status, headers} = await ask(port, request);
    return [status, ...['Access-Control-Allow-Origin', 'Vary', 'X-Frame-Options', 'Content-Language', 'Link'].map((name) => headers.get(name))];
  };
  assert.deepEqual(await of({headers: {Origin: 'https://a'}}), [200, 'https://a', 'Origin', 'DENY', 'de', '</a>, </b>']);
  assert.deepEqual(await of({headers: {Origin: 'https://b'}}), [200, 'https://b', 'Origin', 'DENY', 'de', '</a>, </b>']);
  assert.deepEqual(await of({body: '{}', headers: {Origin: 'https://b'}}), [422, 'https://b', 'Origin', 'DENY', 'de', null]);
});

test('a parser before ours keeps the bytes, or the request is refused and says how', async (t) => {
  for (const [parser, status] of [[express.json({verify: rawBody}), 200], [express.json(), 500]]) {
    const app = express();
    let runs = 0;
    app.post('/', parser, once.express({scope: 'orders', tenant: false}), (req, res) => res.json({runs: ++runs, ...req.body}));
    app.use((error, req, res, _next) => res.status(500).send(error.message));
    const port = await serving(t, app);
    key = `k${randomUUID()}`;
    const first = await ask(port);
    assert.equal(first.status, status);
    assert.equal(runs, status === 200 ? 1 : 0);
    if (status === 500) assert.match(first.text, /put the middleware before the parser, or give the parser \{verify: rawBody\}/);
    else assert.deepEqual([(await ask(port)).text, (await ask(port, {body: '{"a": 2}'})).status], [first.text, 422]);
  }
});

test('an empty body of open length is not at its end until somebody reads it', async (t) => {
  const app = express();
  app.post('/', once.express({scope: 'orders', tenant: false}), async (req, res) => {
    const {readableEnded} = req;
    res.json({readableEnded, size: Buffer.concat(await req.toArray()).length});
  });
  const port = await serving(t, app);
  const raw = net.connect(port, '127.0.0.1');
  raw.write(`POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nIdempotency-Key: ${key}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`);
  assert.match(Buffer.concat(await raw.toArray()).toString(), /\{"readableEnded":false,"size":0\}/);
});

test('HEAD, where it is named, has the length of the body that GET would have', async (t) => {
  const app = express();
  app.use(once.express({scope: 'orders', tenant: false, methods: ['HEAD']}));
  app.get('/', (req, res) => res.send('twelve bytes'));
  const port = await serving(t, app);
  const head = () => fetch(`http://127.0.0.1:${port}/`, {method: 'HEAD', headers: {'Idempotency-Key': key}});
  const {status, headers} = await head();
  assert.deepEqual([status, headers.get('Content-Length')], [200, '12']);
  const again = await head();
  assert.deepEqual([again.status, again.headers.get('Idempotency-Replayed'), again.headers.get('Content-Length')], [200, 'true', null]);
});

test('whoever reads the stream behind ours finds it whole', async (t) => {
  const app = express();
  app.post('/', once.express({scope: 'orders', tenant: false}), async (req, res) => {
    const read = await req.toArray();
    res.json({size: Buffer.concat(read).length});
  });
  const port = await serving(t, app);
  for (const size of [0, 1, 16384, 3000000]) {
    key = `k${randomUUID()}`;
    assert.equal((await ask(port, {body: 'x'.repeat(size)})).text, `{"size":${size}}`);
  }
});

test('Fastify: the hooks of a route stay, and ours come behind them', async (t) => {
  const app = fastify();
  await app.register(once.fastify(ORDERS));
  const auth = async (request, reply) => {
    if (!request.headers['x-user']) return reply.code(401).send('who are you?');
    request.user = request.headers['x-user'];
    return undefined;
  };
  app.post('/', {preHandler: auth}, async (request, reply) => {
    await insert(request);
    return reply.code(201).send({user: request.user, body: request.body});
  });
  app.post('/free', {config: {pgonce: false}}, async () => 'free');
  app.post('/other', {preHandler: auth, config: {pgonce: {scope: 'others'}}}, async (request) => request.pgonce.scope);
  const port = await servingFastify(t, app);
  assert.equal((await ask(port)).status, 401);
  const headers = {'X-User': 'ann'};
  for (const replayed of [null, 'true']) {
    const answer = await ask(port, {headers});
    assert.deepEqual([answer.status, answer.text, answer.headers.get('Idempotency-Replayed')], [201, '{"user":"ann","body":{"a":1}}', replayed]);
  }
  assert.equal(await effects(), 1);
  assert.equal((await ask(port, {path: '/free', headers: {'Idempotency-Key': ''}})).text, 'free');
  assert.equal((await ask(port, {path: '/other', headers})).text, 'others');
});

test('Fastify: what is injected is protected, too', INJECTS, async (t) => {
  const app = fastify();
  await app.register(once.fastify({scope: 'orders', tenant: false}));
  t.after(() => app.close());
  let runs = 0;
  app.post('/', async (request) => ({runs: ++runs, body: request.body}));
  const headers = {'Idempotency-Key': key, 'Content-Type': 'application/json'};
  for (const replayed of [undefined, 'true']) {
    const answer = await app.inject({method: 'POST', url: '/', payload: '{"a":1}', headers});
    assert.deepEqual([answer.statusCode, answer.body, answer.headers['idempotency-replayed']], [200, '{"runs":1,"body":{"a":1}}', replayed]);
  }
});

test('Fastify: a handler that sends and returns is answered after COMMIT, and its error handler sees what failed there', async (t) => {
  const app = fastify();
  await app.register(once.fastify({scope: 'orders', tenant: false}));
  app.setErrorHandler((error, request, reply) => reply.code(507).send({of: error.code}));
  app.post('/', async (request, reply) => {
    reply.code(201).send('sent');
    await insert(request).catch(() => {});
    return reply;
  });
  app.post('/deferred', async (request, reply) => {
    await insert(request);
    await request.pgonce.tx.query('INSERT INTO once_only VALUES (1)');
    return reply.code(201).header('X-Of', 'the handler').send('done');
  });
  const port = await servingFastify(t, app);
  assert.equal((await ask(port)).text, 'sent');
  assert.equal((await ask(port)).headers.get('Idempotency-Replayed'), 'true');
  key = `k${randomUUID()}`;
  const deferred = await ask(port, {path: '/deferred'});
  assert.deepEqual([deferred.status, deferred.text, await effects()], [507, '{"of":"23505"}', 0]);
});

test('Fastify: a body that breaks off is answered by its parsers, and by nobody where they do not look', INJECTS, async (t) => {
  const app = fastify();
  await app.register(once.fastify(ORDERS));
  app.addContentTypeParser('text/odd', (_request, payload, done) => payload.on('data', () => {}).on('error', () => done(null, '')).on('end', () => done(null, '')));
  let runs = 0;
  app.decorateRequest('user', 'u').post('/', async () => ++runs);
  t.after(() => app.close());
  const ask = (type, more) => app.inject({method: 'POST', url: '/', payload: '{}', ...more, headers: {'idempotency-key': key, 'content-type': type, ...more.headers}});
  const short = {headers: {'content-length': '20'}};
  assert.equal((await ask('application/json', short)).json().code, 'FST_ERR_CTP_INVALID_CONTENT_LENGTH');
  assert.deepEqual([(await ask('application/json', {simulate: {error: true}})).statusCode], [400]);
  await assert.rejects(ask('text/odd', short), /destroyed/);
  await assert.rejects(ask('text/odd', {simulate: {error: true}}), /destroyed/);
  assert.equal(runs, 0);
  assert.equal((await ask('application/json', {})).statusCode, 200);
});

test('Fastify: what would protect nothing is refused', async (t) => {
  const spread = () => ({...once.fastify({scope: 'orders', tenant: false})});
  assert.throws(spread, /is a plugin: write "await app.register\(once.fastify\(...\)\)" before the routes/);
  const app = fastify();
  app.register(once.fastify({scope: 'orders', tenant: false})); // not awaited
  let runs = 0;
  app.post('/', async () => `${++runs}`);
  const port = await servingFastify(t, app);
  const refused = await ask(port);
  assert.deepEqual([refused.status, runs], [500, 0]);
  assert.match(refused.text, /this route was registered before the plugin/);
});
