// SPDX-License-Identifier: PostgreSQL
// How an answer can end, in node:http, HTTP/2, Express 4 and 5 and Fastify: whole, by half, never, or to nobody. Only a whole one is stored with its effect, and whatever
// happens the connection goes back to the pool.
'use strict';

const assert = require('node:assert/strict');
const {randomUUID} = require('node:crypto');
const {once: event} = require('node:events');
const fs = require('node:fs');
const http = require('node:http');
const http2 = require('node:http2');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const {Readable, pipeline} = require('node:stream');
const {after, before, beforeEach, test} = require('node:test');

const express = require('express');
const express4 = require('express4');
const fastify = require('fastify');

const {Once} = require('..');
const {poolOf, startServer} = require('./support');

const LONG = 600000; // what never comes

const connections = []; // as the services see them

let server;
let pool;
let lines;
let key;
let once;
let file;

before(async () => {
  const {emit} = net.Server.prototype;
  net.Server.prototype.emit = function told(name, ...args) {
    if (name === 'connection') connections.push(args[0]);
    return emit.call(this, name, ...args);
  };
  server = await startServer();
  pool = poolOf(server, {max: 3});
  await pool.query('CREATE TABLE once_only (id int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO once_only VALUES (1)');
  await pool.query("SELECT once.set_scope('orders', response_bytes_max => 8 << 20)");
  file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'pgonce-answers-')), 'large.txt');
  fs.writeFileSync(file, 'x'.repeat(4 << 20));
});

after(async () => {
  await pool.end();
  await server.program.close();
  fs.rmSync(path.dirname(file), {recursive: true, force: true});
});

beforeEach(() => {
  key = randomUUID().replace(/^/, 'k');
  lines = [];
  once = new Once(pool, {logger: {error: (line) => lines.push(line), debug: () => {}}});
});

const insert = (req) => req.pgonce.tx.query('INSERT INTO effect (key) VALUES ($1)', [key]);
const effects = async () => (await pool.query('SELECT count(*)::int AS n FROM effect WHERE key = $1', [key])).rows[0].n;
const state = async () => (await pool.query("SELECT state::text FROM once.peek('orders', $1)", [key])).rows[0]?.state ?? undefined;

/** Every connection is back, and no transaction is open. Waits for it: what a request leaves behind may end after its answer. */
async function nothingHeld() {
  for (;;) {
    const {rows} = await pool.query("SELECT count(*)::int AS open FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()");
    if (rows[0].open === 0 && pool.totalCount === pool.idleCount && pool.waitingCount === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** handler(req, res), in each framework. */
const DOORS = {
  http: async (options, handler) => listening(http.createServer(once.http(options, handler))),
  express: async (options, handler) => ofExpress(express(), options, handler),
  express4: async (options, handler) => ofExpress(express4(), options, (req, res, next) => Promise.resolve(handler(req, res)).catch(next)),
  fastify: async (options, handler) => {
    const app = fastify();
    await app.register(once.fastify(options));
    app.post('/', async (request, reply) => {
      reply.hijack();
      request.raw.pgonce = request.pgonce;
      // As Express does: of a hijacked reply Fastify answers nothing.
      await handler(request.raw, reply.raw).catch(() => (reply.raw.headersSent ? reply.raw.destroy() : reply.raw.writeHead(500).end()));
    });
    await app.listen({port: 0, host: '127.0.0.1'});
    return {port: app.server.address().port, close: () => app.close()};
  },
};

async function listening(app) {
  app.listen(0, '127.0.0.1');
  await event(app, 'listening');
  return {
    port: app.address().port,
    close: async () => {
      app.closeAllConnections?.();
      await new Promise((resolve) => app.close(resolve));
    },
  };
}

function ofExpress(app, options, handler) {
  app.set('env', 'test'); // it prints no errors
  app.post('/', once.express(options), handler);
  return listening(http.createServer(app));
}

const OPTIONS = {scope: 'orders', tenant: false, handlerMs: LONG};

/** {status, headers, body}; 'cut' where the connection ended before the answer did. */
function ask(port, {leave, body = '{"a": 1}', headers = {}} = {}) {
  return new Promise((resolve) => {
    const req = http.request({port, host: '127.0.0.1', method: 'POST', agent: false, headers: {'Idempotency-Key': key, 'Content-Type': 'application/json', ...headers}});
    req.on('error', () => resolve('cut'));
    req.on('response', (res) => {
      const pieces = [];
      res.on('data', (piece) => pieces.push(piece)).on('error', () => {}).on('close', () => {
        resolve(res.complete ? {status: res.statusCode, headers: res.headers, trailers: res.trailers, body: Buffer.concat(pieces).toString()} : 'cut');
      });
    });
    if (leave) leave.then(() => req.destroy());
    req.end(body);
  });
}

/** The same where time is short: an attempt that has got no connection by then is made again. */
async function begun(port) {
  for (;;) {
    const answer = await ask(port);
    if (!(answer.status === 503 && problemOf(answer) === 'unavailable')) return answer;
  }
}

const problemOf = ({body}) => JSON.parse(body).type.split(':').at(-1);

/** A promise with its resolve. */
function gate() {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return {open, opened};
}

for (const door of Object.keys(DOORS)) {
  const on = async (t, options, handler) => {
    const running = await DOORS[door]({...OPTIONS, ...options}, handler);
    t.after(running.close);
    return running.port;
  };

  const BROKEN = {
    'is destroyed': (req, res) => void res.destroy(),
    'is destroyed with an error': (req, res) => {
      res.on('error', () => {});
      res.destroy(new Error('broken'));
    },
    'is destroyed by half': (req, res) => {
      res.write('half ');
      res.destroy();
    },
    'has its connection destroyed': (req) => void req.socket.destroy(),
    'is a pipeline that failed': (req, res) => pipeline(Readable.from((async function* source() {
      yield 'half ';
      throw new Error('the source broke');
    })()), res, () => {}),
    'throws behind its first part': (req, res) => {
      res.write('half ');
      throw new Error('thrown');
    },
  };
  for (const [name, end] of Object.entries(BROKEN)) {
    test(`${door}: an answer that ${name} does nothing, holds nothing, and a retry runs`, async (t) => {
      let broken = true;
      const port = await on(t, {}, async (req, res) => {
        await insert(req);
        if (!broken) return void res.end('whole');
        return end(req, res);
      });
      assert.equal(await ask(port), 'cut');
      await nothingHeld();
      assert.deepEqual([await effects(), await state()], [0, undefined]);
      broken = false;
      assert.equal((await ask(port)).body, 'whole');
      assert.equal(await effects(), 1);
    });
  }

  test(`${door}: a client that leaves does not make half an answer of a whole one`, async (t) => {
    const [begun, gone, left, done] = [gate(), gate(), gate(), gate()];
    const port = await on(t, {}, async (req, res) => {
      await insert(req);
      const {socket} = req;
      connections.at(-1).once('close', gone.open);
      res.write('one ');
      begun.open();
      await left.opened;
      for (const piece of ['two ', 'three']) {
        if (res.destroyed || res.writableEnded || res.closed || req.socket.destroyed || req.aborted || socket.destroyed) break;
        res.write(piece);
      }
      res.end();
      done.open();
    });
    const raw = net.connect(port, '127.0.0.1');
    raw.write(`POST / HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nIdempotency-Key: ${key}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}`);
    await begun.opened;
    raw.resetAndDestroy();
    await gone.opened;
    left.open();
    await done.opened;
    await nothingHeld();
    const again = await ask(port, {body: '{}'});
    assert.deepEqual([again.status, again.body, again.headers['idempotency-replayed']], [200, 'one two three', 'true']);
    assert.equal(await effects(), 1);
  });

  test(`${door}: a request that breaks off is not taken for a whole one`, async (t) => {
    const port = await on(t, {}, async (req, res) => {
      await insert(req);
      res.end('done');
    });
    for (const framing of ['Content-Length: 10\r\n\r\n{"a"', 'Transfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n']) {
      const raw = net.connect(port, '127.0.0.1');
      raw.on('error', () => {});
      raw.end(`POST / HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nIdempotency-Key: ${key}\r\nContent-Type: application/json\r\n${framing}`);
      raw.resume();
      await event(raw, 'close');
    }
    await nothingHeld();
    assert.deepEqual([await effects(), await state()], [0, undefined]);
    assert.equal((await ask(port)).body, 'done');
  });

  test(`${door}: an answer that is shorter or longer than it says is refused, and nothing is done`, async (t) => {
    const port = await on(t, {}, async (req, res) => {
      await insert(req);
      res.setHeader('Content-Length', req.headers['x-length']);
      res.end('12345');
    });
    for (const length of [4, 6]) {
      assert.equal((await ask(port, {headers: {'X-Length': length}})).status, 500);
      assert.deepEqual([await effects(), await state()], [0, undefined]);
    }
    assert.equal((await ask(port, {headers: {'X-Length': 5}})).body, '12345');
    assert.equal(await effects(), 1);
  });

  test(`${door}: a handler that never answers is ended in time, whatever it waits for`, async (t) => {
    const late = gate();
    const port = await on(t, {handlerMs: 1000}, async (req, res) => {
      await insert(req);
      const error = await req.pgonce.tx.query('SELECT pg_sleep(3600)').catch((failed) => failed);
      await assert.rejects(req.pgonce.tx.query('SELECT 1'), (refused) => refused.code === 'not_in_transaction');
      res.write('too ');
      res.end('late');
      late.open(error.code);
    });
    const answer = await begun(port);
    assert.deepEqual([answer.status, problemOf(answer), answer.headers['retry-after']], [503, 'timed-out', '5']);
    assert.equal(await late.opened, '57014');
    await nothingHeld();
    assert.deepEqual([await effects(), await state()], [0, undefined]);
    assert.match(lines.join(), /problem=timed-out request=[0-9a-f]{32} scope=orders .*has not answered within 1000 ms/);
  });

  test(`${door}: a handler that breaks its answer off because its time is up does not keep the client from being told`, async (t) => {
    const port = await on(t, {handlerMs: 1000}, async (req, res) => {
      await insert(req);
      res.write('half ');
      await req.pgonce.tx.query('SELECT pg_sleep(3600)').catch(() => {});
      res.destroy();
      req.socket.destroy();
    });
    assert.equal(problemOf(await begun(port)), 'timed-out');
    await nothingHeld();
    assert.deepEqual([await effects(), await state()], [0, undefined]);
  });

  test(`${door}: what fails at COMMIT is the application's error, and is logged`, async (t) => {
    const port = await on(t, {}, async (req, res) => {
      await insert(req);
      await req.pgonce.tx.query('INSERT INTO once_only VALUES ($1)', [req.headers['x-id']]);
      res.writeHead(201, {'X-Of': 'the handler'}).end('done');
    });
    const answer = await ask(port, {headers: {'X-Id': 1}});
    assert.deepEqual([answer.status, answer.headers['x-of']], [500, undefined]);
    assert.deepEqual([await effects(), await state()], [0, undefined]);
    assert.match(lines.join(), /scope=orders code=23505 /);
    await nothingHeld();
  });

  test(`${door}: handlers that take a second connection of a full pool are ended in time, and the log names the cause`, async (t) => {
    const port = await on(t, {handlerMs: 600}, async (req, res) => {
      await insert(req);
      await pool.query('SELECT 1');
      res.end('done');
    });
    const ours = key;
    const answers = await Promise.all(Array.from({length: 8}, (_, i) => ask(port, {headers: {'Idempotency-Key': `${ours}/${i}`}})));
    assert.ok(answers.some(({status}) => status === 503));
    await nothingHeld();
    assert.ok(lines.some((line) => line.includes("the pool of 3 is full; a handler that takes a second one from the same pool can cause this; see mode 'lease'")), lines.join('\n'));
    assert.equal((await begun(port)).body, 'done');
  });

  test(`${door}: a full pool is waited for as long as the handler may take, and named`, async (t) => {
    const port = await on(t, {handlerMs: 300}, async (req, res) => {
      await insert(req);
      res.end('done');
    });
    const taken = await Promise.all([1, 2, 3].map(() => pool.connect()));
    const answer = await ask(port);
    taken.forEach((client) => client.release());
    assert.deepEqual([answer.status, problemOf(answer)], [503, 'unavailable']);
    assert.ok(lines.some((line) => line.includes('no connection was free within') && line.includes('the pool of 3 is full')), lines.join('\n'));
    assert.equal((await begun(port)).body, 'done');
  });

  test(`${door}: an event stream passes as it is written, and its key is remembered as done`, async (t) => {
    const [first, second] = [gate(), gate()];
    const port = await on(t, {}, async (req, res) => {
      await insert(req);
      res.writeHead(200, {'Content-Type': 'text/event-stream'});
      res.write('data: one\n\n');
      await first.opened;
      await assert.rejects(insert(req), (refused) => refused.code === 'not_in_transaction');
      res.end('data: two\n\n');
      second.open();
    });
    const raw = net.connect(port, '127.0.0.1');
    raw.write(`POST / HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nIdempotency-Key: ${key}\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}`);
    let seen = '';
    raw.setEncoding('utf8');
    while (!seen.includes('data: one')) seen += (await event(raw, 'data'))[0];
    assert.equal(await effects(), 1);
    first.open();
    await second.opened;
    for await (const piece of raw) seen += piece;
    assert.match(seen, /^HTTP\/1\.1 200 OK\r\n[^]*data: one\n\n[^]*data: two\n\n/);
    const again = await ask(port, {body: '{}'});
    assert.deepEqual([again.status, problemOf(again)], [409, 'too-large']);
    await nothingHeld();
  });

  test(`${door}: trailers, strings and empty writes go out as without us`, async (t) => {
    const port = await on(t, {}, async (req, res) => {
      await insert(req);
      res.setHeader('Trailer', 'X-Sum');
      res.write('grün', 'latin1');
      Readable.from(['ä', 'ö']).on('end', () => {
        res.addTrailers({'X-Sum': '42'});
        res.end();
      }).pipe(res, {end: false});
    });
    const first = await ask(port);
    assert.deepEqual([first.trailers['x-sum'], first.body], ['42', Buffer.concat([Buffer.from('grün', 'latin1'), Buffer.from('äö')]).toString()]);
    assert.equal((await ask(port)).body, first.body);
  });

  test(`${door}: an invalid status or header throws where it is written, and the next request is served`, async (t) => {
    for (const wrong of [(res) => res.writeHead(99), (res) => {
      res.statusCode = 1000;
      res.end('x');
    }, (res) => res.writeHead(200, {'X-Bad': 'a\nb'}), (res) => res.write(7)]) {
      const port = await on(t, {}, async (req, res) => {
        await insert(req);
        try {
          wrong(res);
        } catch {
          res.statusCode = 400;
          return void res.end('refused');
        }
        return undefined;
      });
      assert.deepEqual([(await ask(port)).status, await effects()], [400, 0], String(wrong));
      key = `${key}/`;
    }
    await nothingHeld();
  });

  test(`${door}: a source that writes without patience does not stop the process`, async (t) => {
    const port = await on(t, {}, async (req, res) => {
      await insert(req);
      let n = 0;
      const more = () => {
        while (n < 200) if (n++, !res.write('x'.repeat(1000))) return void res.once('drain', more);
        res.end();
      };
      more();
    });
    assert.equal((await ask(port)).body.length, 200000);
  });

  test(`${door}: a server that closes while an answer is being stored sends it first`, async (t) => {
    const port = await on(t, {}, async (req, res) => {
      await insert(req);
      res.end('done');
      req.socket.server.closeIdleConnections(); // as close() of newer versions does
    });
    assert.equal((await ask(port)).body, 'done');
  });

  test(`${door}: what a handler puts over the response's methods stays there`, async (t) => {
    const told = [];
    const port = await on(t, {}, async (req, res) => {
      await insert(req);
      const {emit} = res;
      res.emit = (name, ...args) => {
        told.push(name);
        return emit.call(res, name, ...args);
      };
      res.end('done');
    });
    assert.equal((await ask(port)).body, 'done');
    while (!told.includes('close')) await new Promise(setImmediate);
    assert.deepEqual(told.filter((name) => name === 'finish' || name === 'close'), ['finish', 'close']);
  });

  test(`${door}: a second answer is refused as node refuses it, and the first one is stored`, async (t) => {
    const told = gate();
    const port = await on(t, {}, async (req, res) => {
      await insert(req);
      res.end('first');
      assert.equal(res.headersSent && res.writableEnded, true);
      try {
        res.setHeader('X-Late', '1');
      } catch (error) {
        told.open(error.code);
      }
      res.end('second');
    });
    assert.equal((await ask(port)).body, 'first');
    assert.equal(await told.opened, 'ERR_HTTP_HEADERS_SENT');
    assert.deepEqual([(await ask(port)).body, await effects()], ['first', 1]);
  });
}

for (const [name, framework] of [['express', express], ['express4', express4]]) {
  test(`${name}: a file whose client leaves is ended, and a retry gets it whole`, async (t) => {
    const [begun, left] = [gate(), gate()];
    const app = framework();
    app.set('env', 'test');
    app.post('/', once.express({...OPTIONS, responseMax: 8 << 20}), async (req, res) => {
      await insert(req);
      begun.open();
      await left.opened;
      res.sendFile(file, {dotfiles: 'allow'});
    });
    const running = await listening(http.createServer(app));
    t.after(running.close);
    const gone = ask(running.port, {leave: begun.opened});
    await gone;
    left.open();
    await nothingHeld();
    const again = await ask(running.port);
    assert.deepEqual([again.status, again.body.length, await effects()], [200, 4 << 20, 1]);
  });
}

test('as many departed clients as the pool has connections leave the service whole', async (t) => {
  const running = await DOORS.http(OPTIONS, async (req, res) => {
    await insert(req);
    res.destroy();
  });
  t.after(running.close);
  for (let i = 0; i < 12; i++) assert.equal(await ask(running.port, {headers: {'Idempotency-Key': `${key}/${i}`}}), 'cut');
  await nothingHeld();
});

test('a request whose client has left before there was a connection takes none, and does not run', async (t) => {
  let runs = 0;
  const running = await DOORS.http(OPTIONS, async (req, res) => {
    runs++;
    await insert(req);
    res.end('done');
  });
  t.after(running.close);
  const held = await Promise.all([pool.connect(), pool.connect(), pool.connect()]);
  const leave = gate();
  const gone = ask(running.port, {leave: leave.opened});
  while (pool.waitingCount === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  const seen = event(connections.at(-1), 'close');
  leave.open();
  assert.equal(await gone, 'cut');
  await seen;
  for (const client of held) client.release();
  await nothingHeld();
  assert.deepEqual([runs, await effects(), await state()], [0, 0, undefined]);
});

test('a client that left before its body was asked for leaves nothing waiting', async (t) => {
  const [begun, passed] = [gate(), gate()];
  let runs = 0;
  const running = await listening(http.createServer(async (req, res) => {
    begun.open();
    await new Promise((resolve) => req.on('error', () => {}).once('close', resolve));
    await once.express(OPTIONS)(req, res, () => (runs += 1));
    passed.open();
  }));
  t.after(running.close);
  const raw = net.connect(running.port, '127.0.0.1');
  raw.write(`POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: ${key}\r\nContent-Length: 10\r\n\r\nhalf`);
  await begun.opened;
  raw.destroy();
  await passed.opened;
  assert.equal(runs, 0);
});

/** An outer layer that answers a request before there is a connection for it. */
const IMPATIENT = {
  express: (handler) => {
    const app = express();
    app.post('/', (_req, res, next) => {
      waiting.push(() => res.status(503).send('too late'));
      next();
    }, once.express(OPTIONS), handler);
    return listening(http.createServer(app));
  },
  fastify: async (handler) => {
    const app = fastify();
    app.addHook('onRequest', async (request, reply) => void waiting.push(() => reply.code(503).send('too late')));
    await app.register(once.fastify(OPTIONS));
    app.post('/', handler);
    await app.listen({port: 0, host: '127.0.0.1'});
    return {port: app.server.address().port, close: () => app.close()};
  },
};
let waiting = [];

for (const [door, serve] of Object.entries(IMPATIENT)) {
  test(`${door}: who was answered before there was a connection runs nothing, and holds none`, async (t) => {
    waiting = [];
    let runs = 0;
    const running = await serve((_req, res) => {
      runs += 1;
      res.send('ran');
    });
    t.after(running.close);
    const taken = await Promise.all(Array.from({length: 3}, () => pool.connect()));
    const kept = net.connect(running.port, '127.0.0.1');
    t.after(() => kept.destroy());
    kept.write(`POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: ${key}\r\nContent-Length: 0\r\n\r\n`);
    while (pool.waitingCount === 0) await new Promise(setImmediate);
    waiting[0]();
    assert.match(String((await event(kept, 'data'))[0]), /^HTTP\/1.1 503 .*too late$/s);
    for (const client of taken) client.release();
    await nothingHeld();
    assert.equal(runs, 0);
    assert.equal((await ask(running.port)).body, 'ran');
  });
}

test('HTTP/2: an answer that its client does not take yet leaves room for the others of its session', async (t) => {
  const running = await listening(http2.createServer(once.http(OPTIONS, async (req, res) => {
    await insert(req);
    const pieces = req.headers['x-size'] === 'large' ? 32 : 0;
    for (let i = 0; i < pieces; i++) if (!res.write(Buffer.alloc(1 << 20))) await event(res, 'drain');
    res.end('end');
  })));
  const session = http2.connect(`http://127.0.0.1:${running.port}`);
  t.after(async () => {
    session.destroy();
    await running.close();
  });
  const request = (size) => session.request({':method': 'POST', ':path': '/', 'idempotency-key': `${key}/${size}`, 'x-size': size}).end();
  const large = request('large');
  await event(large, 'response');
  const small = request('small');
  assert.equal((await small.toArray()).join(''), 'end');
  let size = 0;
  for await (const piece of large) size += piece.length;
  assert.equal(size, (32 << 20) + 3);
  await nothingHeld();
});

test('HTTP/2: answers, replays and refusals are those of HTTP/1, and who leaves ends the attempt', async (t) => {
  const begun = gate();
  let wait = false;
  const app = http2.createServer(once.http(OPTIONS, async (req, res) => {
    await insert(req);
    let body = '';
    for await (const piece of req) body += piece;
    if (wait) {
      begun.open();
      await event(res, 'close');
      return;
    }
    res.writeHead(201, {'Content-Type': 'text/plain', Link: ['</a>', '</b>']});
    res.write('got ');
    res.end(body);
  }));
  const running = await listening(app);
  const session = http2.connect(`http://127.0.0.1:${running.port}`);
  t.after(async () => {
    session.destroy();
    await running.close();
  });
  const request = (body) => {
    const stream = session.request({':method': 'POST', ':path': '/', 'idempotency-key': key, 'content-type': 'application/json'});
    stream.end(body);
    return stream;
  };
  const answerTo = async (body) => {
    const stream = request(body);
    const [headers] = await event(stream, 'response');
    let text = '';
    for await (const piece of stream) text += piece;
    return [headers[':status'], headers['idempotency-replayed'], headers.link, text];
  };
  assert.deepEqual(await answerTo('{"a": 1}'), [201, undefined, '</a>, </b>', 'got {"a": 1}']);
  assert.deepEqual(await answerTo('{"a": 1}'), [201, 'true', '</a>, </b>', 'got {"a": 1}']);
  assert.equal((await answerTo('{"a": 2}'))[0], 422);
  assert.equal(await effects(), 1);
  key = `${key}/leaves`;
  wait = true;
  const leaving = request('{}');
  leaving.on('error', () => {});
  await begun.opened;
  leaving.close(http2.constants.NGHTTP2_CANCEL);
  await nothingHeld();
  assert.deepEqual([await effects(), await state()], [0, undefined]);
  wait = false;
  assert.equal((await answerTo('{}'))[0], 201);
});

test("mode 'lease': the handler runs without a connection, and what it answers is the outcome", async (t) => {
  const answers = {
    201: ['succeeded', 201, 'true'], 404: ['failed_final', 404, 'true'], 500: ['in_doubt', 409, undefined], 408: ['in_doubt', 409, undefined], 503: ['in_doubt', 409, undefined],
    429: ['failed_retryable', 429, undefined],
  };
  const running = await DOORS.express({...OPTIONS, mode: 'lease'}, async (req, res) => {
    assert.equal(req.pgonce.tx, undefined);
    assert.deepEqual([req.pgonce.key, req.pgonce.signal.aborted, pool.totalCount - pool.idleCount], [key, false, 0]);
    const status = Number(req.headers['x-status']);
    if (status === 429) res.setHeader('Retry-After', '1');
    res.status(status).send('said');
  });
  t.after(running.close);
  for (const [status, [stored, retried, replayed]] of Object.entries(answers)) {
    key = randomUUID().replace(/^/, 'k');
    const headers = {'X-Status': status};
    const first = await ask(running.port, {headers});
    assert.deepEqual([first.status, first.body], [Number(status), 'said']);
    assert.equal(await state(), stored, status);
    const again = await ask(running.port, {headers});
    assert.deepEqual([again.status, again.headers['idempotency-replayed']], [retried, replayed], status);
  }
});

test("mode 'lease': a handler that is cut off, or gives no whole answer, leaves a doubt", async (t) => {
  for (const end of [(res) => res.destroy(), () => {}]) {
    key = randomUUID().replace(/^/, 'k');
    const running = await DOORS.http({...OPTIONS, handlerMs: 2000, mode: 'lease'}, (req, res) => end(res));
    t.after(running.close);
    const first = await ask(running.port);
    assert.ok(first === 'cut' || problemOf(first) === 'in-doubt');
    while ((await state()) === 'processing') await new Promise((resolve) => setTimeout(resolve, 10));
    assert.equal(problemOf(await ask(running.port)), 'in-doubt');
    await nothingHeld();
  }
});

test('options that cannot work are refused at start-up', () => {
  for (const wrong of [{mode: 'elsewhere'}, {handlerMs: 0}, {handlerMs: Infinity}, {handlerMs: NaN}, {mode: 'lease', isolation: 'serializable'}, {strange: 1}, {scope: ''}]) {
    for (const door of [(options) => once.express(options), (options) => once.http(options, () => {}), (options) => once.fastify(options)]) {
      assert.throws(() => door({...OPTIONS, ...wrong}), TypeError, JSON.stringify(wrong));
    }
  }
});

test('a refusal is told to debug, and neither a key nor a payload to anybody', async (t) => {
  const told = [];
  once = new Once(pool, {logger: {error: (line) => told.push(`error ${line}`), debug: (line) => told.push(`debug ${line}`)}});
  const running = await DOORS.http(OPTIONS, (req, res) => res.end('done'));
  t.after(running.close);
  await ask(running.port);
  assert.equal((await ask(running.port, {body: '{"secret": 1}'})).status, 422);
  assert.equal(told.length, 1);
  assert.match(told[0], /^debug pgonce: problem=mismatch request=[0-9a-f]{32} scope=orders$/);
});

test('host: false leaves the name of the service out of what is compared', async (t) => {
  const running = await DOORS.http({...OPTIONS, host: false}, (req, res) => res.end('done'));
  t.after(running.close);
  const answers = [await ask(running.port, {headers: {Host: 'a.test'}}), await ask(running.port, {headers: {Host: 'b.test'}})];
  assert.deepEqual(answers.map(({status, headers}) => [status, headers['idempotency-replayed']]), [[200, undefined], [200, 'true']]);
});
