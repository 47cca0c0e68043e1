// SPDX-License-Identifier: PostgreSQL
// A gateway in front, with the same scope: its claim is finished in the transaction of the effect (docs/reference/gateway.md, "In front of a client's middleware").
'use strict';

const assert = require('node:assert/strict');
const nodeHttp = require('node:http');
const {after, before, beforeEach, test} = require('node:test');
const {randomUUID} = require('node:crypto');

const {Once} = require('..');
const {FAULTS, REPORTS_MAX, poolOf, startForwarder, startServer} = require('./support');

let server;
let pool;
let key;
const lines = [];

before(async () => {
  server = await startServer();
  pool = poolOf(server);
});

after(async () => {
  await pool.end();
  await server.program.close();
});

beforeEach(() => {
  key = `order:${randomUUID()}`;
  lines.length = 0;
});

const logger = {debug: () => {}, error: (line) => lines.push(line)};
const options = {scope: 'orders', tenant: (req) => decodeURIComponent(req.headers['x-tenant'])};
const insert = (tx) => tx.query('INSERT INTO effect (key) VALUES ($1)', [key]);
const effects = async () => (await pool.query('SELECT count(*)::int AS n FROM effect WHERE key = $1', [key])).rows[0].n;
const stored = async () => (await pool.query('SELECT state, result_type FROM once.intent WHERE key = $1', [key])).rows[0];
const listening = (app) => new Promise((resolve) => app.listen(0, '127.0.0.1', () => resolve(app)));

/** handler(req, res) in each of the frameworks: its server. */
const FRAMEWORKS = {
  http: (once, more, handler) => listening(nodeHttp.createServer(once.http({...options, ...more}, handler))),
  express: (once, more, handler) => {
    const app = require('express')();
    app.set('env', 'test');
    app.post('/', once.express({...options, ...more}), (req, res, next) => Promise.resolve(handler(req, res)).catch(next));
    return new Promise((resolve) => {
      const at = app.listen(0, '127.0.0.1', () => resolve(at));
    });
  },
  fastify: async (once, more, handler) => {
    const app = require('fastify')();
    await app.register(once.fastify({...options, ...more}));
    app.post('/', async (request, reply) => {
      request.raw.pgonce = request.pgonce;
      reply.hijack();
      await handler(request.raw, reply.raw);
    });
    await app.listen({port: 0, host: '127.0.0.1'});
    return app.server;
  },
};

/** A service with this handler, and a gateway before it: ask() goes through it. Skipped where the module is not built. */
async function within(t, framework, {through = pool, ...more}, handler, work) {
  const service = await FRAMEWORKS[framework](new Once(through, {logger}), {gateway: true, ...more}, handler);
  try {
    const {gateway} = await server.program.tell(`gateway orders ${service.address().port}`);
    if (gateway === null) return t.skip('the module is not built');
    await work({
      ask: (body = '{}') => fetch(`http://127.0.0.1:${gateway.port}/`, {method: 'POST', headers: {'Idempotency-Key': `"${key}"`, 'X-Tenant': 'acme', 'Content-Type': 'application/json'}, body}),
      service,
    });
  } finally {
    service.closeAllConnections();
    await new Promise((resolve) => service.close(resolve));
  }
  return undefined;
}

/** Straight to a service, with what a gateway would say. */
const straight = (service, headers) => fetch(`http://127.0.0.1:${service.address().port}/`, {method: 'POST', headers: {'Idempotency-Key': key, 'X-Tenant': 'acme', ...headers}, body: '{}'});

async function claimed(tenant = 'acme') {
  const {rows: [{fence}]} = await pool.query("SELECT fence FROM once.claim('orders', $1, once.fingerprint('x'::text, $2), tenant => $2)", [key, tenant]);
  return {'Once-Tenant': encodeURIComponent(tenant), 'Once-Scope': 'orders', 'Once-Key': encodeURIComponent(key), 'Once-Fence': String(fence)};
}

for (const framework of Object.keys(FRAMEWORKS)) {
  test(`${framework}: the effect and the gateway's intent commit together, and retries replay`, async (t) => {
    let runs = 0;
    await within(t, framework, {}, async (req, res) => {
      runs++;
      await insert(req.pgonce.tx);
      assert.equal((await pool.query("SELECT state FROM once.peek('orders', $1, 'acme')", [key])).rows[0].state, 'processing');
      res.writeHead(201, {'Content-Type': 'application/json'}).end('{"order":7}');
    }, async ({ask}) => {
      const first = await ask();
      assert.deepEqual([first.status, await first.text(), first.headers.get('idempotency-replayed'), first.headers.get('once-effect')], [201, '{"order":7}', null, null]);
      assert.deepEqual([(await stored()).state, await effects()], ['succeeded', 1]);
      const again = await ask();
      assert.deepEqual([again.status, await again.text(), again.headers.get('idempotency-replayed')], [201, '{"order":7}', 'true']);
      assert.equal((await ask('{"other":1}')).status, 422);
      assert.deepEqual([runs, await effects(), lines.length], [1, 1, 0]);
    });
  });

  test(`${framework}: what is taken back frees the key, though a 500 alone would leave a doubt`, async (t) => {
    let runs = 0;
    await within(t, framework, {}, async (req, res) => {
      await insert(req.pgonce.tx);
      if (++runs === 1) res.writeHead(500).end('out of order');
      else res.writeHead(201).end('done');
    }, async ({ask}) => {
      const first = await ask();
      assert.deepEqual([first.status, await first.text(), await effects(), (await stored()).state], [500, 'out of order', 0, 'failed_retryable']);
      const second = await ask();
      assert.deepEqual([second.status, await second.text(), await effects()], [201, 'done', 1]);
    });
  });

  test(`${framework}: without the option the error says what is wrong`, async (t) => {
    await within(t, framework, {gateway: false}, () => assert.fail('it ran'), async ({ask}) => {
      for (let i = 0; i < 2; i++) {
        const answer = await ask();
        assert.match((await answer.json()).detail, /A pgonce gateway in front of this service has claimed this key in the same scope: set the option gateway/);
        assert.ok(answer.status === 409 || answer.status === 422);
      }
      assert.equal(lines.filter((line) => line.includes('A pgonce gateway in front')).length, 2);
    });
  });

  test(`${framework}: in mode lease the gateway alone claims and reports`, async (t) => {
    let runs = 0;
    await within(t, framework, {mode: 'lease'}, async (req, res) => {
      assert.equal(req.pgonce.tx, undefined);
      if (++runs === 1) res.writeHead(500, {'Once-Effect': 'none'}).end();
      else res.writeHead(201).end('charged');
    }, async ({ask}) => {
      assert.deepEqual([(await ask()).status, (await stored()).state], [500, 'failed_retryable']);
      assert.equal(await (await ask()).text(), 'charged');
      const again = await ask();
      assert.deepEqual([await again.text(), again.headers.get('idempotency-replayed'), runs], ['charged', 'true', 2]);
    });
  });
}

test('a refusal is stored without its effect, and so is the end of an answer that is too large', async (t) => {
  const answers = {refused: [422, 'no'], large: [201, 'x'.repeat(3000)], 'large and refused': [422, 'x'.repeat(3000)]};
  await within(t, 'http', {responseMax: 2000}, async (req, res) => {
    await insert(req.pgonce.tx);
    const [status, body] = answers[JSON.parse(req.rawBody).is];
    res.writeHead(status, {'Content-Type': 'text/plain'}).end(body);
  }, async ({ask}) => {
    for (const [is, [status, body]] of Object.entries(answers)) {
      key = `order:${randomUUID()}`;
      const first = await ask(JSON.stringify({is}));
      assert.deepEqual([first.status, await first.text(), await effects()], [status, body, status === 201 ? 1 : 0], is);
      const again = await ask(JSON.stringify({is}));
      if (is === 'refused') assert.deepEqual([again.status, await again.text(), again.headers.get('idempotency-replayed')], [422, 'no', 'true']);
      else assert.match((await again.json()).type, /too-large$/);
    }
  });
});

test('a handler whose word is unknown leaves a doubt, and its effect in the database is taken back', async (t) => {
  await within(t, 'http', {}, async (req, res) => {
    await insert(req.pgonce.tx);
    res.writeHead(502, {'Once-Effect': 'unknown'}).end();
  }, async ({ask}) => {
    assert.equal((await ask()).status, 502);
    assert.deepEqual([(await stored()).state, await effects()], ['in_doubt', 0]);
    assert.match((await (await ask()).json()).type, /in-doubt$/);
  });
});

for (const [lost, runs] of [['lose_answer COMMIT', 1], ['lose_request COMMIT', 2]]) {
  test(`a COMMIT that is lost (${lost}) frees the key where nothing was done, and is told where it was`, async (t) => {
    const forwarder = await startForwarder(server);
    const far = poolOf(server, {port: forwarder.port});
    let ran = 0;
    t.after(async () => {
      await far.end();
      await forwarder.program.close();
    });
    await within(t, 'http', {through: far}, async (req, res) => {
      ran++;
      await insert(req.pgonce.tx);
      res.writeHead(201).end('done');
    }, async ({ask}) => {
      const {rule} = await forwarder.program.tell(lost);
      const first = await ask();
      assert.deepEqual(await forwarder.program.tell(`wait ${rule}`), {fired: true});
      if (runs === 1) assert.deepEqual([first.status, await first.text(), await effects(), (await stored()).state], [201, 'done', 1, 'succeeded']);
      else {
        assert.match((await first.json()).type, /unavailable$/);
        assert.deepEqual([first.status, first.headers.get('retry-after'), await effects(), (await stored()).state], [503, '5', 0, 'failed_retryable']);
      }
      const again = await ask();
      assert.deepEqual([again.status, await again.text(), again.headers.get('idempotency-replayed'), await effects(), ran], [201, 'done', runs === 1 ? 'true' : null, 1, runs]);
    });
  });
}

for (const fault of FAULTS.commits_under_a_claim) {
  test(`a COMMIT that is lost under a claim: ${fault.name}`, async (t) => {
    const forwarder = await startForwarder(server);
    const far = poolOf(server, {port: forwarder.port});
    const service = await FRAMEWORKS.http(new Once(far, {logger}), {gateway: true}, async (req, res) => {
      await insert(req.pgonce.tx);
      res.writeHead(201).end('done');
    });
    t.after(async () => {
      service.closeAllConnections();
      await new Promise((resolve) => service.close(resolve));
      await far.end();
      await forwarder.program.close();
    });
    const problemOf = async (claim) => (await (await straight(service, claim)).json()).type.split(':').at(-1);
    const claim = await claimed();
    const {rule} = await forwarder.program.tell(`${fault.commit} COMMIT`);
    for (let i = 0; fault.reports && i < REPORTS_MAX; i++) await forwarder.program.tell(`${fault.reports} once.fail`);
    assert.equal(await problemOf(claim), fault.problem);
    assert.deepEqual(await forwarder.program.tell(`wait ${rule}`), {fired: true});
    await forwarder.program.tell('forget');
    assert.deepEqual([(await stored()).state, await effects()], [fault.state, fault.effects]);
    if (fault.state !== 'processing') assert.deepEqual([await problemOf(claim), await effects()], ['active', fault.effects]);
    if (fault.state === 'failed_retryable') assert.deepEqual([(await straight(service, await claimed())).status, await effects()], [201, 1]);
  });
}

test('what a lost COMMIT leaves is a doubt where nobody can say what became of it', async (t) => {
  const forwarder = await startForwarder(server);
  const far = poolOf(server, {port: forwarder.port});
  t.after(async () => {
    await far.end();
    await forwarder.program.close();
  });
  await within(t, 'http', {through: far}, async (req, res) => {
    await insert(req.pgonce.tx);
    res.writeHead(201).end('done');
  }, async ({ask}) => {
    await forwarder.program.tell('lose_request COMMIT');
    for (let i = 0; i < REPORTS_MAX; i++) await forwarder.program.tell('lose_request once.fail'); // each time that it is tried
    assert.match((await (await ask()).json()).type, /not-stored$/);
    assert.deepEqual([await effects(), (await stored()).state], [0, 'in_doubt']);
    assert.match((await (await ask()).json()).type, /in-doubt$/);
  });
});

test('two runs under one fence have one effect, though their answers are the same', async () => {
  const service = await FRAMEWORKS.http(new Once(pool, {logger}), {gateway: true}, async (req, res) => {
    await insert(req.pgonce.tx);
    res.writeHead(201).end('the same');
  });
  const headers = await claimed();
  const told = await Promise.all([straight(service, headers), straight(service, headers), straight(service, headers)]);
  assert.deepEqual(told.map(({status}) => status).sort(), [201, 409, 409]);
  assert.equal(await effects(), 1);
  const late = await straight(service, {...headers, 'Once-Fence': String(Number(headers['Once-Fence']) + 1)});
  assert.match((await late.json()).type, /active$/);
  assert.equal(await effects(), 1);
  service.closeAllConnections();
  service.close();
});

test('headers that do not name this very intent, or come twice, count for nothing', async () => {
  let handed = 0;
  const service = await FRAMEWORKS.http(new Once(pool, {logger}), {gateway: true}, async (req, res) => {
    handed += (await pool.query('SELECT 1 FROM once.intent WHERE key = $1', [key])).rowCount;
    await insert(req.pgonce.tx);
    res.writeHead(201).end();
  });
  for (const wrong of [{'Once-Key': 'other'}, {'Once-Tenant': 'zeta'}, {'Once-Scope': 'others'}, {'Once-Fence': '0'}, {'Once-Fence': '1x'}, {'Once-Fence': '2147483648'}, {'Once-Key': '%'}]) {
    key = `order:${randomUUID()}`;
    const headers = {'Once-Tenant': 'acme', 'Once-Scope': 'orders', 'Once-Key': encodeURIComponent(key), 'Once-Fence': '1', ...wrong};
    const answer = await straight(service, headers);
    assert.deepEqual([answer.status, await effects(), (await stored()).state], [201, 1, 'succeeded'], JSON.stringify(wrong)); // protected by itself
  }
  key = `order:${randomUUID()}`;
  const invented = await straight(service, {'Once-Tenant': 'acme', 'Once-Scope': 'orders', 'Once-Key': encodeURIComponent(key), 'Once-Fence': '1'});
  assert.deepEqual([invented.status, await effects(), await stored()], [409, 0, undefined]); // a forger's own key: nothing is done
  assert.equal(handed, 0);
  service.closeAllConnections();
  service.close();
});

test('names are read as the gateway writes them', async () => {
  const service = await FRAMEWORKS.http(new Once(pool, {logger}), {gateway: true}, async (req, res) => {
    await insert(req.pgonce.tx);
    res.writeHead(201).end();
  });
  key = `100% +&=;, ${randomUUID()} `;
  const tenant = 'söder & cie ';
  const headers = {...(await claimed(tenant)), 'Idempotency-Key': `"${key}"`, 'X-Tenant': encodeURIComponent(tenant)};
  const answer = await straight(service, headers);
  assert.deepEqual([answer.status, await effects(), (await stored()).state], [201, 1, 'succeeded']);
  service.closeAllConnections();
  service.close();
});
