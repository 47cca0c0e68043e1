// SPDX-License-Identifier: PostgreSQL
// A service behind the middleware of Express, Fastify or plain http: that of a case of spec/cases/http.json, or the torture's (torture.js).
'use strict';

const nodeHttp = require('http');
const {Readable} = require('stream');

const {away, theirs, world} = require('./world');

/** What a member of a case says of bytes. */
function bytesOf(said) {
  if (said.text !== undefined) return Buffer.from(said.text);
  if (said.base64 !== undefined) return Buffer.from(said.base64, 'base64');
  return said.repeat !== undefined ? Buffer.from(said.repeat.repeat(said.count)) : undefined;
}

/** A statement past every check: pg lets an object send itself. */
const behind = (tx, text) => new Promise((resolve, reject) => {
  const none = () => {};
  tx.query({
    submit: (connection) => connection.query(text), handleRowDescription: none, handleDataRow: none, handleCommandComplete: none, handleError: reject, handleReadyForQuery: resolve,
  });
});

const listening = (server) => new Promise((resolve) => server.once('listening', () => resolve(server.address().port)));
const closing = (server) => () => new Promise((resolve) => server.close(resolve));

function optionsOf({mode, once: wanted = 'required', scope = 'conformance', tenant = 'header', wait_ms: waitMs, response_max: responseMax, body_max: bodyMax, key_syntax: syntax, key_length: keyLength, methods, headers, canonical_json: canonicalJson}) {
  const options = {
    scope, required: wanted === 'required', tenant: tenant === 'none' ? false : (req) => (req.raw ?? req).headers['x-tenant'], strictKeys: syntax === 'strict',
    mode, waitMs, responseMax, bodyMax, keyLength, methods, headers, canonicalJson,
  };
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

/** The body in pieces; with `slow` there are pauses between them. broken: half of it, and then an error. */
async function* piecesOf({body, pieces, slow, broken}) {
  const size = Math.max(1, Math.ceil(body.length / pieces));
  for (let at = 0; at < (broken ? body.length / 2 : body.length); at += size) {
    yield body.subarray(at, at + size);
    if (slow) await new Promise((resolve) => setTimeout(resolve, 10));
  }
  if (broken) throw new Error('broken off, as ordered');
}

async function write(res, answer) {
  res.statusCode = answer.status;
  for (const [name, value] of answer.headers) res.appendHeader ? res.appendHeader(name, value) : res.setHeader(name, value);
  if (answer.trailers) res.setHeader('Trailer', Object.keys(answer.trailers).join(', '));
  if (answer.pieces > 1) {
    try {
      for await (const piece of piecesOf(answer)) res.write(piece);
    } catch (error) {
      if (!answer.broken) throw error;
      return void res.destroy();
    }
  } else if (answer.trailers) {
    res.write(answer.body);
  }
  if (answer.trailers) res.addTrailers(answer.trailers);
  res.end(answer.pieces > 1 || answer.trailers ? undefined : answer.body);
}

/**
 * Each starts a server for a service, and gives its port and what ends it. A service has a name, which is its path; a port, or any; the options of the middleware; and execute, whose
 * answer is a status, headers as pairs, a body and the number of its pieces.
 */
const FRAMEWORKS = {
  express: async (client, service) => {
    const app = theirs('express')();
    app.all(`/${service.name}`, client.express(service.options), theirs('express').json(), async (req, res) => write(res, await service.execute(req)));
    // Express prints the stack of an error; these are thrown on purpose.
    app.use((error, req, res, next) => res.status(error.status ?? 500).end());
    const server = app.listen(service.port ?? 0, '127.0.0.1');
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
        for (const [name, value] of Object.entries(answer.trailers ?? {})) reply.trailer(name, async () => value);
        return reply.send(answer.pieces > 1 ? Readable.from(piecesOf(answer)) : answer.body.length > 0 ? answer.body : undefined);
      },
    });
    await app.listen({port: service.port ?? 0, host: '127.0.0.1'});
    return [app.server.address().port, () => app.close()];
  },
  'node-http': async (client, service) => {
    const server = nodeHttp.createServer(client.http(service.options, async (req, res) => write(res, await service.execute(req))));
    server.listen(service.port ?? 0, '127.0.0.1');
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
    const [port, close] = await FRAMEWORKS[this.framework](this.location.database === 'away' ? away() : world.once, this);
    this.close = close;
    return port;
  }

  async execute(req) {
    const said = this.script[Math.min(this.#runs, this.script.length - 1)];
    const number = ++this.#runs;
    if (said.effect ?? true) await req.pgonce.tx.query('INSERT INTO effect (key, attempt) VALUES ($1, $2)', [this.name, number]);
    for (const text of said.behind ?? []) await behind(req.pgonce.tx, text);
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

module.exports = {FRAMEWORKS, Service, behind, bytesOf};
