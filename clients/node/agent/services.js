// SPDX-License-Identifier: PostgreSQL
// The service of a case of spec/cases/http.json, behind the middleware of Express, Fastify or plain http.
'use strict';

const nodeHttp = require('http');
const {Readable} = require('stream');

const {away, once, theirs} = require('./world');

/** What a member of a case says of bytes. */
function bytesOf(said) {
  if (said.text !== undefined) return Buffer.from(said.text);
  if (said.base64 !== undefined) return Buffer.from(said.base64, 'base64');
  return said.repeat !== undefined ? Buffer.from(said.repeat.repeat(said.count)) : undefined;
}

const listening = (server) => new Promise((resolve) => server.once('listening', () => resolve(server.address().port)));
const closing = (server) => () => new Promise((resolve) => server.close(resolve));

function optionsOf({mode, once: wanted = 'required', scope = 'conformance', tenant = 'header', wait_ms: waitMs, response_max: responseMax, body_max: bodyMax, key_syntax: syntax, key_length: keyLength, methods, headers, canonical_json: canonicalJson}) {
  const options = {
    scope, required: wanted === 'required', tenant: tenant === 'none' ? false : (req) => (req.raw ?? req).headers['x-tenant'], strictKeys: syntax === 'strict',
    mode, waitMs, responseMax, bodyMax, keyLength, methods, headers, canonicalJson,
  };
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

function piecesOf({body, pieces}) {
  const size = Math.max(1, Math.ceil(body.length / pieces));
  return Array.from({length: Math.ceil(body.length / size)}, (_, i) => body.subarray(i * size, (i + 1) * size));
}

function write(res, answer) {
  res.statusCode = answer.status;
  for (const [name, value] of answer.headers) res.appendHeader ? res.appendHeader(name, value) : res.setHeader(name, value);
  if (answer.pieces > 1) for (const piece of piecesOf(answer)) res.write(piece);
  res.end(answer.pieces > 1 ? undefined : answer.body);
}

/** Each starts a server for a service, and gives its port and what ends it. */
const FRAMEWORKS = {
  express: async (client, service) => {
    const app = theirs('express')();
    app.all(`/${service.name}`, client.express(service.options), theirs('express').json(), async (req, res) => write(res, await service.execute(req)));
    // Express prints the stack of an error; the cases throw on purpose.
    app.use((error, req, res, next) => res.status(error.status ?? 500).end());
    const server = app.listen(0, '127.0.0.1');
    return [await listening(server), closing(server)];
  },
  fastify: async (client, service) => {
    const app = theirs('fastify')();
    app.addContentTypeParser('*', {parseAs: 'buffer'}, (request, body, done) => done(null, body));
    app.removeContentTypeParser(['application/json', 'text/plain']);
    await app.register(client.fastify(service.options));
    app.route({
      method: ['POST', 'PUT', 'PATCH', 'DELETE'], url: `/${service.name}`,
      handler: async (request, reply) => {
        const answer = await service.execute(request);
        reply.code(answer.status);
        for (const [name, value] of answer.headers) reply.header(name, reply.getHeader(name) !== undefined ? [reply.getHeader(name), value].flat() : value);
        return reply.send(answer.pieces > 1 ? Readable.from(piecesOf(answer)) : answer.body.length > 0 ? answer.body : undefined);
      },
    });
    await app.listen({port: 0, host: '127.0.0.1'});
    return [app.server.address().port, () => app.close()];
  },
  'node-http': async (client, service) => {
    const server = nodeHttp.createServer(client.http(service.options, async (req, res) => write(res, await service.execute(req))));
    server.listen(0, '127.0.0.1');
    return [await listening(server), closing(server)];
  },
};

/** What the executions of a case's service do, in turn. */
class Service {
  #held = [];
  #waiting = [];
  #begun = 0;
  #runs = 0;

  constructor({name, framework, location, service}) {
    Object.assign(this, {name, framework, location, script: service, options: optionsOf(location)});
  }

  async start() {
    const [port, close] = await FRAMEWORKS[this.framework](this.location.database === 'away' ? away() : once, this);
    this.close = close;
    return port;
  }

  async execute(req) {
    const said = this.script[Math.min(this.#runs, this.script.length - 1)];
    const number = ++this.#runs;
    if (said.effect ?? true) await req.pgonce.tx.query('INSERT INTO effect (key, attempt) VALUES ($1, $2)', [this.name, number]);
    if (said.hold) {
      this.#begun++;
      this.#waiting.splice(0).forEach((resolve) => resolve());
      if (!this.released) await new Promise((resolve) => this.#held.push(resolve));
    }
    if (said.throw) throw new Error(said.throw);
    const body = bytesOf(said) ?? Buffer.from(JSON.stringify({execution: number}));
    return {status: said.status ?? 201, headers: said.headers ?? [['Content-Type', 'application/json']], body, pieces: said.pieces ?? 1};
  }

  /** One more execution that is held has begun. */
  async begun() {
    if (this.#begun === 0) await new Promise((resolve) => this.#waiting.push(resolve));
    this.#begun--;
    return {};
  }

  release() {
    this.released = true;
    this.#held.splice(0).forEach((resolve) => resolve());
    return {};
  }

  async stop() {
    this.release();
    await this.close();
    return {runs: this.#runs};
  }
}

module.exports = {Service, bytesOf};
