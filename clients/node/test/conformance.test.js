// SPDX-License-Identifier: PostgreSQL
// The cases of clients/conformance: run, claim, emit, receive, lock, and the middleware of Express, Fastify and plain http.
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const nodeHttp = require('node:http');
const net = require('node:net');
const path = require('node:path');
const test = require('node:test');

const express = require('express');
const fastify = require('fastify');

const {Failed, Once, OnceError} = require('..');
const {SUITE, poolOf, startServer} = require('./support');

const DOOR = 'node';
const PROBLEMS = JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/problems.json')));
const ALL = Object.fromEntries(['sql', 'http', 'cross'].map((file) => [file, JSON.parse(fs.readFileSync(path.join(SUITE, `${file}.json`))).cases]));
const ours = (one, framework) => !one.doors || ['client', DOOR, framework].some((door) => one.doors.includes(door));

const results = {};
function noted(name, work) {
  return async (t) => {
    results[name] ??= 'pass';
    try {
      await work(t);
    } catch (error) {
      results[name] = 'fail';
      throw error;
    }
  };
}

function bytesOf(said) {
  if (said.text !== undefined) return Buffer.from(said.text);
  if (said.base64 !== undefined) return Buffer.from(said.base64, 'base64');
  return said.repeat !== undefined ? Buffer.from(said.repeat.repeat(said.count)) : undefined;
}

function answerOf(said = {}) {
  const body = said.json ?? said.text ?? bytesOf(said);
  return {status: said.status, headers: said.headers, body, resultType: said.result_type, resultId: said.result_id};
}

function requestOf(one, {request = {json: {case: one.name}}}) {
  if (request.http) return {http: {method: request.http.method, target: request.http.target, contentType: request.http.content_type, body: request.http.text}};
  return 'json' in request ? request.json : request.text ?? bytesOf(request);
}

/** The calls of one case. */
class Calls {
  constructor(once, pool, one) {
    Object.assign(this, {once, pool, one, claims: {}, held: {}});
  }

  async effect(effect, tx, within) {
    for (const each of effect.do ?? []) {
      if (each.sql) {
        await tx.query(each.sql);
      } else if (each.emit) {
        const {topic, payload, aggregate_type: aggregateType, aggregate_id: aggregateId, event_type: eventType, ...more} = each.emit;
        await this.once.emit(tx, topic, payload, {aggregateType, aggregateId, eventType, ...more});
      } else if (each.emit_bytes) {
        const {topic, base64, content_type: contentType, aggregate_type: aggregateType, aggregate_id: aggregateId, event_type: eventType, ...more} = each.emit_bytes;
        await this.once.emitBytes(tx, topic, Buffer.from(base64, 'base64'), contentType, {aggregateType, aggregateId, eventType, ...more});
      } else if (each.lock) {
        assert.equal(await this.once.lock(tx, each.lock.resource, {waitMs: each.lock.wait_ms}), each.is);
      } else {
        await tx.query(each.swallow).catch(() => {});
      }
    }
    if (effect.throw) throw new Error(effect.throw);
    if (effect.fail) throw new Failed(effect.fail.code, effect.fail.message, answerOf(effect.fail));
    return answerOf(effect.answer);
  }

  call(step) {
    const {scope = 'conformance', key = this.one.name, tenant = ''} = step;
    const of = this.claims[step.of];
    const default_ = {do: [{sql: `INSERT INTO effect (key) VALUES ('${this.one.name}')`}], answer: {status: 201, text: 'done'}};
    const calls = {
      run: () => this.once.run(scope, key, requestOf(this.one, step), (tx) => this.effect(step.effect ?? default_, tx), {tenant}),
      claim: async () => {
        const claim = await this.once.claim(scope, key, requestOf(this.one, step), {tenant, leaseMs: step.lease_ms, retentionMs: step.retention_ms, takeover: step.takeover});
        if (!claim.replayed) this.claims[step.as] = claim;
        return claim;
      },
      complete: async () => ({is: await of.complete(answerOf(step.answer))}),
      fail: async () => ({is: await of.fail(step.retryable, {code: step.code, message: step.message, answer: answerOf(step.answer)})}),
      renew: async () => ({is: await of.renew()}),
      release: async () => ({is: await of.release()}),
      receive: async () => ({verdict: await this.once.consume(step.consumer, step.message, requestOf(this.one, step), (tx) => this.effect(step.effect, tx), {tenant})}),
      sql: () => this.pool.query(step.sql),
      effect: async () => {
        const result = bytesOf(step.result).toString();
        const value = await this.once.effect({scope, key, tenant, request: requestOf(this.one, step)}, async () => result)();
        return {body: JSON.stringify(value)};
      },
      hold: async () => {
        const client = await this.pool.connect();
        await client.query('BEGIN');
        const request = JSON.stringify(requestOf(this.one, step));
        await client.query('SELECT once.start($1, $2, once.fingerprint($3::jsonb, $4), $4)', [scope, key, request, tenant]);
        if (step.lock) await client.query("SELECT once.lock($1, interval '0')", [step.lock]);
        this.held[step.as] = client;
      },
      unhold: async () => {
        await this.held[step.of].query('ROLLBACK');
        this.held[step.of].release();
      },
    };
    return calls[step.call]();
  }

  async step(step) {
    const {expect = {}} = step;
    let result;
    try {
      result = await this.call(step);
    } catch (error) {
      if (!expect.error) throw error;
      this.compareError(error, expect.error);
      return;
    }
    assert.ok(!expect.error, `expected ${JSON.stringify(expect.error)}`);
    this.compare(result, expect.result ?? {});
  }

  compareError(error, expected) {
    if (expected.code === 'application') {
      assert.ok(!(error instanceof OnceError), error);
      return;
    }
    assert.ok(error instanceof OnceError, error);
    assert.ok(!`${error.message} ${error.stack}`.includes(`'${this.one.name}'`), 'an error names no key');
    for (const [name, value] of Object.entries(expected)) {
      if (name === 'answer') this.compare(error.answer, value);
      else assert.equal(error[name], value, name);
    }
  }

  compare(said, expected) {
    const body = bytesOf(expected);
    for (const [name, value] of Object.entries(expected)) {
      if (name === 'json') assert.deepEqual(JSON.parse(said.body), value);
      else if (name === 'fence_above') assert.ok(said.fence > this.claims[value].fence);
      else if (body && ['text', 'base64', 'repeat'].includes(name)) assert.deepEqual(Buffer.from(said.body), body);
      else if (name !== 'count') assert.deepEqual(said[{result_type: 'resultType', result_id: 'resultId'}[name] ?? name], value, name);
    }
  }
}

async function assertRows(pool, one) {
  for (const {sql, is} of one.rows ?? []) {
    assert.deepEqual((await pool.query({text: sql, rowMode: 'array'})).rows, is, sql);
  }
}

/** The service of a case: what its executions do, in turn. */
class Service {
  constructor(one) {
    Object.assign(this, {one, script: one.service ?? [{}], runs: 0, held: [], begun: []});
  }

  async execute(req) {
    const said = this.script[Math.min(this.runs, this.script.length - 1)];
    this.runs++;
    const number = this.runs;
    if (said.effect ?? true) await req.pgonce.tx.query('INSERT INTO effect (key, attempt) VALUES ($1, $2)', [this.one.name, number]);
    this.begun.splice(0).forEach((resolve) => resolve());
    if (said.hold && !this.released) await new Promise((resolve) => this.held.push(resolve));
    if (said.throw) throw new Error(said.throw);
    const body = bytesOf(said) ?? Buffer.from(JSON.stringify({execution: number}));
    return {status: said.status ?? 201, headers: said.headers ?? [['Content-Type', 'application/json']], body, pieces: said.pieces ?? 1};
  }

  /** The next execution has begun. */
  beginning() {
    return new Promise((resolve) => this.begun.push(resolve));
  }

  release() {
    this.released = true;
    this.held.splice(0).forEach((resolve) => resolve());
  }

  static pieces({body, pieces}) {
    const size = Math.max(1, Math.ceil(body.length / pieces));
    return Array.from({length: Math.ceil(body.length / size)}, (_, i) => body.subarray(i * size, (i + 1) * size));
  }

  static write(res, answer) {
    res.statusCode = answer.status;
    for (const [name, value] of answer.headers) res.appendHeader ? res.appendHeader(name, value) : res.setHeader(name, value);
    if (answer.pieces > 1) for (const piece of Service.pieces(answer)) res.write(piece);
    res.end(answer.pieces > 1 ? undefined : answer.body);
  }
}

function optionsOf({location = {}}) {
  const {mode, once = 'required', scope = 'conformance', tenant = 'header', wait_ms: waitMs, response_max: responseMax, body_max: bodyMax, key_syntax: syntax, key_length: keyLength, methods, headers, canonical_json: canonicalJson} = location;
  const options = {
    scope, required: once === 'required', tenant: tenant === 'none' ? false : (req) => (req.raw ?? req).headers['x-tenant'], strictKeys: syntax === 'strict',
    mode, waitMs, responseMax, bodyMax, keyLength, methods, headers, canonicalJson,
  };
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

/** Each starts a server for a service, and returns its port and how to end it. */
const FRAMEWORKS = {
  express: async (once, one, service) => {
    const app = express();
    app.all(`/${one.name}`, once.express(optionsOf(one)), express.json(), async (req, res) => Service.write(res, await service.execute(req)));
    // Express writes the stack of what was thrown; the tests throw on purpose.
    app.use((error, req, res, next) => res.status(error.status ?? 500).end());
    const server = app.listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    return {port: server.address().port, close: () => new Promise((resolve) => server.close(resolve))};
  },
  fastify: async (once, one, service) => {
    const app = fastify();
    app.addContentTypeParser('*', {parseAs: 'buffer'}, (request, body, done) => done(null, body));
    app.removeContentTypeParser(['application/json', 'text/plain']);
    await app.register(once.fastify(optionsOf(one)));
    app.route({
      method: ['POST', 'PUT', 'PATCH', 'DELETE'], url: `/${one.name}`,
      handler: async (request, reply) => {
        const answer = await service.execute(request);
        reply.code(answer.status);
        for (const [name, value] of answer.headers) reply.header(name, reply.getHeader(name) !== undefined ? [reply.getHeader(name), value].flat() : value);
        return reply.send(answer.pieces > 1 ? require('node:stream').Readable.from(Service.pieces(answer)) : answer.body.length > 0 ? answer.body : undefined);
      },
    });
    await app.listen({port: 0, host: '127.0.0.1'});
    return {port: app.server.address().port, close: () => app.close()};
  },
  'node-http': async (once, one, service) => {
    const server = nodeHttp.createServer(once.http(optionsOf(one), async (req, res) => Service.write(res, await service.execute(req))));
    server.listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    return {port: server.address().port, close: () => new Promise((resolve) => server.close(resolve))};
  },
};

/** One request byte by byte, on a connection of its own. */
function ask(port, one, step) {
  const own = step.headers ?? [];
  const given = new Set(own.map(([name]) => name.toLowerCase()));
  const keys = step.key === undefined ? [`"${one.name}"`] : step.key === null ? [] : [step.key].flat();
  const body = bytesOf(step.body ?? {text: '{"amount": 100}'});
  const lines = [
    `${step.method ?? 'POST'} /${one.name}${step.target ?? ''} HTTP/1.1`, `Host: ${step.host ?? 'shop.test'}`,
    ...[['X-Tenant', 'acme'], ['Content-Type', 'application/json']].filter(([name]) => !given.has(name.toLowerCase())).map((pair) => pair.join(': ')),
    ...own.filter(([, value]) => value !== null).map((pair) => pair.join(': ')), ...keys.map((key) => `Idempotency-Key: ${key}`),
    'Connection: close', `Content-Length: ${body.length}`, '', '',
  ];
  return new Promise((resolve, reject) => {
    const socket = net.connect(port, '127.0.0.1', () => socket.write(Buffer.concat([Buffer.from(lines.join('\r\n'), 'latin1'), body])));
    const pieces = [];
    socket.on('data', (piece) => pieces.push(piece));
    socket.on('error', reject);
    socket.on('close', () => resolve(parsed(Buffer.concat(pieces))));
  });
}

function parsed(raw) {
  const at = raw.indexOf('\r\n\r\n');
  const [first, ...lines] = raw.subarray(0, at).toString('latin1').split('\r\n');
  const headers = lines.map((line) => [line.slice(0, line.indexOf(':')).toLowerCase(), line.slice(line.indexOf(':') + 1).trim()]);
  let body = raw.subarray(at + 4);
  if (headers.some(([name, value]) => name === 'transfer-encoding' && value === 'chunked')) body = unchunked(body);
  return {status: Number(first.split(' ')[1]), headers, body, all: (name) => headers.filter(([each]) => each === name.toLowerCase()).map(([, value]) => value)};
}

function unchunked(body) {
  const pieces = [];
  for (let at = 0; ;) {
    const end = body.indexOf('\r\n', at);
    const size = parseInt(body.subarray(at, end).toString(), 16);
    if (!size) return Buffer.concat(pieces);
    pieces.push(body.subarray(end + 2, end + 2 + size));
    at = end + 2 + size + 2;
  }
}

function compareHttp(answer, expected) {
  const body = bytesOf(expected);
  if (expected.status !== undefined) assert.equal(answer.status, expected.status, answer.body.toString());
  if (expected.replayed !== undefined) assert.deepEqual(answer.all('Idempotency-Replayed'), expected.replayed ? ['true'] : []);
  for (const [name, value] of Object.entries(expected.headers ?? {})) assert.deepEqual(answer.all(name), [value], name);
  for (const name of expected.absent ?? []) assert.deepEqual(answer.all(name), [], name);
  if (body) assert.deepEqual(answer.body, body);
  if (expected.json !== undefined) assert.deepEqual(JSON.parse(answer.body), expected.json);
  if (expected.problem) {
    const row = PROBLEMS.problems[expected.problem];
    const instance = /"urn:pgonce:request:[0-9a-f]{32}"/.exec(answer.body.toString())?.[0].slice(1, -1);
    const detail = row.detail + (expected.more ? ` ${expected.more}` : '');
    const document = {type: PROBLEMS.type_base + expected.problem, title: row.title, status: row.status, detail, instance, retryable: row.retry_after !== null};
    assert.equal(answer.body.toString(), JSON.stringify(document));
    assert.equal(answer.status, row.status);
    assert.deepEqual(answer.all('Content-Type'), ['application/problem+json']);
    assert.deepEqual(answer.all('Cache-Control'), ['no-store']);
    assert.deepEqual(answer.all('Idempotency-Replayed'), []);
    assert.deepEqual(answer.all('Retry-After'), row.retry_after === null ? [] : [String(row.retry_after)]);
  }
}

test('the suite', async (t) => {
  const server = await startServer('--gateway');
  const pool = poolOf(server);
  const away = poolOf(server, {host: '/nowhere', port: 1});
  const quiet = {logger: {error: () => {}}};
  const once = new Once(pool, quiet);
  t.after(async () => {
    await Promise.all([pool.end(), away.end()]);
    await server.program.close();
    if (process.env.PGONCE_CONFORMANCE_RESULTS) {
      fs.writeFileSync(path.join(process.env.PGONCE_CONFORMANCE_RESULTS, 'node.json'), JSON.stringify({door: DOOR, results}));
    }
  });

  for (const one of ALL.sql.filter((each) => ours(each))) {
    await t.test(`sql: ${one.name}`, noted(`sql/${one.name}`, async () => {
      for (const sql of one.arrange ?? []) await pool.query(sql);
      const calls = new Calls(once, pool, one);
      for (const step of one.steps) await calls.step(step);
      for (const claim of Object.values(calls.claims)) await claim.release();
      await assertRows(pool, one);
    }));
  }

  async function play(one, framework, name) {
    for (const sql of one.arrange ?? []) await pool.query(sql);
    const service = new Service(one);
    const running = await FRAMEWORKS[framework](one.location?.database === 'away' ? new Once(away, quiet) : once, one, service);
    const background = {};
    try {
      for (const step of one.steps) {
        if (step.call) await new Calls(once, pool, one).step(step);
        else if (step.release) service.release();
        else if (step.join) compareHttp(await background[step.join], step.expect);
        else if (step.background) {
          const beginning = service.script[Math.min(service.runs, service.script.length - 1)].hold && service.runs === 0 ? service.beginning() : undefined;
          background[step.background] = ask(running.port, one, step);
          await beginning;
        } else compareHttp(await ask(step.door === 'gateway' ? server.gateway.port : running.port, one, step), step.expect);
      }
    } finally {
      service.release();
      await running.close();
    }
    assert.equal(service.runs, one.runs, 'runs');
    if (one.effects !== undefined) {
      const {rows} = await pool.query('SELECT count(*)::int AS count FROM effect WHERE key = $1', [one.name]);
      assert.equal(rows[0].count, one.effects, 'effects');
    }
    assert.equal(pool.totalCount, pool.idleCount, 'every connection is back in the pool');
  }

  /** Each framework finds the keys unused. */
  const fresh = () => pool.query("SELECT set_config('session_replication_role', 'replica', false)").then(() => pool.query('DELETE FROM once.intent; DELETE FROM effect; DELETE FROM once.outbox'));

  for (const framework of Object.keys(FRAMEWORKS)) {
    await fresh();
    for (const one of ALL.http.filter((each) => ours(each, framework))) await t.test(`${framework}: ${one.name}`, noted(`http/${one.name}`, () => play(one, framework)));
    for (const one of ALL.cross.filter((each) => ours(each, framework))) {
      const options = one.steps.some((step) => step.door === 'gateway') && !server.gateway ? {skip: 'the gateway is not built'} : {};
      await t.test(`${framework}: ${one.name}`, options, noted(`cross/${one.name}`, () => play(one, framework)));
    }
  }
});
