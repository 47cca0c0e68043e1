// SPDX-License-Identifier: PostgreSQL
// The handlers of cases.json in Fastify, with the plugins of its own organisation.
'use strict';

const crypto = require('crypto');
const {createRequire} = require('module');
const {Readable} = require('stream');

const from = createRequire(require.resolve('../node/common.js'));
const {after, effect, elsewhere, files, inUse, lateTx, lines, nested, on, once, options, order, pieces, pool, sha256, text, turn, txOf} = from('./common.js');
const fastify = from('fastify');

/** The handlers below this prefix have a neighbour that stands outside. */
const below = (prefix, hook) => async (request, reply) => {
  if (request.url.startsWith(prefix)) await hook(request, reply);
};

async function outside(app) {
  await app.register(from('@fastify/cors'), {
    origin: 'https://shop.example', credentials: true, allowedHeaders: ['Idempotency-Key', 'Content-Type'], methods: ['GET', 'POST'], exposedHeaders: ['Idempotency-Replayed'],
  });
  await app.register(from('@fastify/compress'), {global: false});
  await app.register(from('@fastify/cookie'));
  await app.register(from('@fastify/session'), {secret: 'of a test, and as long as it has to be', cookie: {secure: false}, saveUninitialized: false});
  await app.register(from('@fastify/csrf-protection'), {sessionPlugin: '@fastify/session'});
  app.addHook('onRequest', below('/outer', (request, reply) => {
    reply.headers({'X-Outer': 'one', Link: '</outer>; rel=help', 'Content-Language': 'de'});
  }));
  app.addHook('onRequest', below('/auth', (request, reply) => {
    if (request.headers.authorization === 'Basic dTpw') return undefined;
    return reply.code(401).header('WWW-Authenticate', 'Basic realm="x"').send('Unauthorized');
  }));
}

async function inside(app) {
  await app.register(from('@fastify/formbody'));
  await app.register(from('@fastify/multipart'));
  await app.register(from('@fastify/static'), {root: files, prefix: '/files/'});
  app.addHook('preHandler', below('/inner', (request, reply) => {
    reply.header('X-Inner', 'one');
  }));
  // Read by nobody, or by the handler.
  app.removeContentTypeParser('text/plain');
  app.addContentTypeParser('*', (request, payload, done) => done(null));
}

function routes(app) {
  const does = (name, handler, more = {}) => app.post(`/${name}`, more, async (request, reply) => {
    await effect(request, name);
    return handler(request, reply);
  });
  const raw = async (request) => {
    const read = [];
    for await (const piece of request.raw) read.push(piece);
    return Buffer.concat(read);
  };

  does('json', (request, reply) => reply.code(201).send(order));
  does('text', (request, reply) => reply.send(text));
  does('empty', (request, reply) => reply.send());
  does('no-content', (request, reply) => reply.code(204).send());
  does('reset-content', (request, reply) => reply.code(205).send());
  does('large', (request, reply) => {
    const all = Buffer.alloc(Number(request.query.bytes), '0123456789abcdef');
    const parts = Array.from({length: Math.ceil(all.length / 65536)}, (_, i) => all.subarray(i * 65536, (i + 1) * 65536));
    return reply.type('application/octet-stream').header('Content-Length', String(all.length)).send(Readable.from(parts, {objectMode: false}));
  });
  does('stream-bytes', (request, reply) => reply.type('application/octet-stream').send(Readable.from((async function* source() {
    for (const piece of pieces) {
      yield piece;
      await turn();
    }
  })())));
  does('stream-text', (request, reply) => reply.type('text/plain; charset=utf-8').send(Readable.from(lines)));
  does('file', (request, reply) => reply.sendFile('report.txt'));
  does('download', (request, reply) => reply.download('report.txt', 'rapport é.txt'));
  does('redirect', (request, reply) => reply.redirect('/json', 303));
  does('redirect-307', (request, reply) => reply.redirect('/json', 307));
  does('cookies', (request, reply) => reply.setCookie('a', '1', {path: '/', httpOnly: true}).setCookie('b', '2', {path: '/', sameSite: 'lax'}).send('cookies'));
  does('repeated', (request, reply) => reply.headers({
    Link: ['</a>; rel=next', '</b>; rel=last'], 'X-Part': ['one', 'two'], Vary: ['Origin', 'Accept'], 'Cache-Control': 'no-store',
  }).send('repeated'));
  does('odd', (request, reply) => reply.headers({'X-Odd': 'café', 'X-Empty': '', 'X-Long': 'x'.repeat(4000), 'X-Spaced': 'a  b\tc'}).type('text/plain').send(Buffer.from('odd')));
  does('close', (request, reply) => reply.header('Connection', 'close').send('close'));

  does('compressed', (request, reply) => reply.type('text/plain').send('compress me, please. '.repeat(200)), {compress: {}});
  does('cors', (request, reply) => reply.code(201).send({cors: true}));
  does('outer', (request, reply) => reply.code(201).send({outer: true}));
  does('inner', (request, reply) => reply.code(201).send({inner: true}));
  does('auth', (request, reply) => reply.send('auth'));
  app.get('/session', async (request) => {
    request.session.visits = 0;
    return {visits: 0};
  });
  does('session', async (request) => {
    request.session.visits += 1;
    return {visits: request.session.visits};
  });
  app.get('/csrf', async (request, reply) => reply.type('text/plain').send(reply.generateCsrf()));
  does('csrf', (request, reply) => reply.code(201).send({csrf: true, amount: request.body.amount}), {onRequest: app.csrfProtection});

  does('form', async (request) => request.body);
  app.post('/upload', async (request) => {
    const said = {fields: {}, files: []};
    for await (const part of request.parts()) {
      if (part.type === 'field') {
        said.fields[part.fieldname] = part.value;
      } else {
        const bytes = await part.toBuffer();
        said.files.push([part.fieldname, part.filename, part.mimetype, bytes.length, sha256(bytes)]);
      }
    }
    await effect(request, 'upload');
    return said;
  });
  does('body', async (request) => ({got: request.body}));
  does('valid', async (request) => ({amount: request.body.amount}), {schema: {body: {type: 'object', required: ['amount'], properties: {amount: {type: 'integer'}}}}});
  does('echo', async (request, reply) => {
    const bytes = await raw(request);
    reply.headers({'X-Type': request.headers['content-type'] ?? '', 'X-Encoding': request.headers['content-encoding'] ?? ''}).type('application/octet-stream');
    return bytes;
  });
  does('digest', async (request) => {
    const hash = crypto.createHash('sha256');
    let size = 0;
    for await (const piece of request.raw) {
      size += piece.length;
      hash.update(piece);
    }
    return {size, sha256: hash.digest('hex')};
  });
  does('request', async (request) => ({
    method: request.method, target: request.originalUrl, host: request.host, accept: [request.headers.accept], a: [].concat(request.query.a), client: Boolean(request.ip),
  }));
  does('unread', (request, reply) => reply.send('unread'));

  does('throws', () => {
    throw new Error('thrown');
  });
  does('throws-late', (request, reply) => reply.type('text/plain').send(Readable.from((async function* source() {
    yield 'first ';
    yield 'second ';
    await turn();
    throw new Error('thrown late');
  })())));
  does('status', (request, reply) => {
    const code = Number(request.query.code);
    if (request.query.raise) throw Object.assign(new Error('sorry'), {statusCode: code});
    return reply.code(code).send({code});
  });
  does('retry-after', (request, reply) => reply.code(503).header('Retry-After', '7').send('later'));
  does('deferred', async (request, reply) => {
    await txOf(request).query('INSERT INTO taken (id) VALUES (1)');
    return reply.code(201).send({deferred: true});
  });
  does('deadlock', async (request, reply) => {
    await txOf(request).query('SELECT deadlock()');
    return reply.code(201).send('deadlock');
  });
  does('swallowed', async (request, reply) => {
    await txOf(request).query('SELECT 1/0').catch(() => {});
    return reply.code(201).send('swallowed');
  });
  does('commit', async (request, reply) => {
    await txOf(request).query('COMMIT');
    return reply.code(201).send('commit');
  });
  app.post('/begin-commit', async (request, reply) => {
    const client = on ? txOf(request) : await pool.connect();
    await client.query('BEGIN');
    await client.query("INSERT INTO effect (name) VALUES ('begin-commit')");
    await client.query('COMMIT');
    if (!on) client.release();
    return reply.code(201).send('begin-commit');
  });
  app.post('/nested', async (request, reply) => {
    await nested(request);
    return reply.code(201).send({nested: true});
  });
  app.post('/role', async (request, reply) => {
    if (on) await txOf(request).query('SET LOCAL ROLE reader');
    await effect(request, 'role');
    return reply.code(201).send('role');
  });
  does('background', (request, reply) => {
    after(() => elsewhere('background-task'), reply.raw);
    return reply.code(202).send('background');
  });
  does('late-tx', (request, reply) => {
    after(() => lateTx(request), reply.raw);
    return reply.code(202).send('late-tx');
  });
  does('second', async (request, reply) => {
    await pool.query('SELECT 1');
    return reply.code(201).send({second: 1});
  });

  does('two-answers', (request, reply) => {
    reply.code(201).send('first');
    return reply.code(202).send('second');
  });
  does('no-answer', () => new Promise(() => {}));
  does('destroyed', (request, reply) => {
    reply.hijack();
    reply.raw.write('half ', () => reply.raw.destroy());
  });
  does('short', (request, reply) => reply.type('text/plain').header('Content-Length', '10').send(Readable.from(['short'])));
  does('long', (request, reply) => reply.type('text/plain').header('Content-Length', '4').send(Readable.from(['too long'])));
  does('invalid-status', (request, reply) => reply.code(99).send('odd'));
  does('bad-header', (request, reply) => reply.header('X-Bad', 'a\nb').send('odd'));
  does('early-hints', (request, reply) => {
    reply.writeEarlyHints({link: '</style.css>; rel=preload'});
    return reply.send('hints');
  });
  does('trailers', (request, reply) => reply.type('text/plain').trailer('X-Checksum', async () => '42').send('with trailers'));
  does('events', async (request, reply) => reply.type('text/event-stream').send(Readable.from((async function* source() {
    yield 'data: one\n\n';
    await pool.query('SELECT gate()');
    yield 'data: two\n\n';
  })())));
  does('gate', async (request, reply) => {
    const {raw: res} = reply.type('text/plain');
    return reply.send(Readable.from((async function* source() {
      yield 'before ';
      await txOf(request).query('SELECT gate()');
      if (!res.destroyed) yield 'after';
    })()));
  });

  app.register(async (sub) => {
    sub.post('/json', async (request, reply) => {
      await effect(request, 'sub/json');
      return reply.code(201).send(order);
    });
  }, {prefix: '/sub'});

  app.get('/cacheable', async (request, reply) => {
    reply.headers({ETag: '"v1"', 'Last-Modified': 'Sat, 01 Jan 2022 00:00:00 GMT'});
    if (request.headers['if-none-match'] === '"v1"') return reply.code(304).send();
    return reply.send('cacheable');
  });
}

async function main() {
  const app = fastify();
  app.get('/-/pool', async () => inUse());
  await outside(app);
  if (on) await app.register(once.fastify(options));
  await inside(app);
  routes(app);
  await app.listen({port: process.env.PORT, host: '127.0.0.1'});
}

main();
