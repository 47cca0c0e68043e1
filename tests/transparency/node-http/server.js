// SPDX-License-Identifier: PostgreSQL
// The handlers of cases.json in plain node:http and node:http2: what a framework has is done by hand.
'use strict';

const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const http2 = require('http2');
const path = require('path');
const {createRequire} = require('module');
const {Readable} = require('stream');
const {pipeline} = require('stream/promises');
const zlib = require('zlib');

const from = createRequire(require.resolve('../node/common.js'));
const {after, effect, elsewhere, files, inUse, lateTx, lines, nested, on, once, options, order, pieces, pool, text, turn, txOf} = from('./common.js');

const TEXT = {'Content-Type': 'text/plain; charset=utf-8'};
const BYTES = {'Content-Type': 'application/octet-stream'};
const REPORT = path.join(files, 'report.txt');

const json = (res, status, value) => {
  const body = JSON.stringify(value);
  res.writeHead(status, {'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body)}).end(body);
};
const say = (res, status, words) => res.writeHead(status, TEXT).end(words);

const handlers = {
  json: (req, res) => json(res, 201, order),
  text: (req, res) => say(res, 200, text),
  empty: (req, res) => res.end(),
  'no-content': (req, res) => res.writeHead(204).end(),
  'reset-content': (req, res) => res.writeHead(205).end(),
  large: async (req, res, url) => {
    const all = Buffer.alloc(Number(url.searchParams.get('bytes')), '0123456789abcdef');
    res.writeHead(200, {...BYTES, 'Content-Length': all.length});
    await pipeline(Readable.from(Array.from({length: Math.ceil(all.length / 65536)}, (_, i) => all.subarray(i * 65536, (i + 1) * 65536)), {objectMode: false}), res);
  },
  'stream-bytes': async (req, res) => {
    res.setHeader('Content-Type', 'application/octet-stream');
    for (const piece of pieces) {
      res.write(piece);
      await turn();
    }
    res.end();
  },
  'stream-text': (req, res) => {
    res.writeHead(200, TEXT);
    Readable.from(lines).pipe(res);
  },
  file: async (req, res) => {
    res.writeHead(200, {...TEXT, 'Content-Length': (await fs.promises.stat(REPORT)).size});
    await pipeline(fs.createReadStream(REPORT), res);
  },
  download: async (req, res) => {
    res.writeHead(200, {...TEXT, 'Content-Disposition': "attachment; filename=\"rapport ?.txt\"; filename*=UTF-8''rapport%20%C3%A9.txt"});
    await pipeline(fs.createReadStream(REPORT), res);
  },
  redirect: (req, res) => res.writeHead(303, {Location: '/json'}).end(),
  'redirect-307': (req, res) => res.writeHead(307, {Location: '/json'}).end(),
  cookies: (req, res) => res.writeHead(200, {...TEXT, 'Set-Cookie': ['a=1; Path=/; HttpOnly', 'b=2; Path=/; SameSite=Lax']}).end('cookies'),
  repeated: (req, res) => res.writeHead(200, [
    ['Link', '</a>; rel=next'], ['Link', '</b>; rel=last'], ['X-Part', 'one'], ['X-Part', 'two'], ['Vary', 'Origin'], ['Vary', 'Accept'], ['Cache-Control', 'no-store'],
  ].flat()).end('repeated'),
  odd: (req, res) => res.writeHead(200, {...TEXT, 'X-Odd': 'café', 'X-Empty': '', 'X-Long': 'x'.repeat(4000), 'X-Spaced': 'a  b\tc'}).end('odd'),
  close: (req, res) => res.writeHead(200, {...TEXT, Connection: 'close'}).end('close'),

  compressed: (req, res) => {
    const all = 'compress me, please. '.repeat(200);
    res.setHeader('Vary', 'Accept-Encoding');
    if (!/gzip/.test(req.headers['accept-encoding'] ?? '')) return say(res, 200, all);
    res.writeHead(200, {...TEXT, 'Content-Encoding': 'gzip'});
    return pipeline(Readable.from([all]), zlib.createGzip(), res);
  },
  cors: (req, res) => json(res, 201, {cors: true}),
  outer: (req, res) => json(res, 201, {outer: true}),
  inner: (req, res) => {
    res.setHeader('X-Inner', 'one');
    json(res, 201, {inner: true});
  },
  auth: (req, res) => say(res, 200, 'auth'),

  echo: async (req, res) => {
    const read = [];
    for await (const piece of req) read.push(piece);
    res.writeHead(200, {...BYTES, 'X-Type': req.headers['content-type'] ?? '', 'X-Encoding': req.headers['content-encoding'] ?? ''}).end(Buffer.concat(read));
  },
  digest: async (req, res) => {
    const hash = crypto.createHash('sha256');
    let size = 0;
    for await (const piece of req) {
      size += piece.length;
      hash.update(piece);
    }
    json(res, 200, {size, sha256: hash.digest('hex')});
  },
  request: (req, res, url) => json(res, 200, {
    method: req.method, target: req.url, host: req.headers.host, accept: [req.headers.accept], a: url.searchParams.getAll('a'), raw: req.rawHeaders.length,
    client: Boolean(req.socket.remoteAddress),
  }),
  unread: (req, res) => say(res, 200, 'unread'),

  throws: () => {
    throw new Error('thrown');
  },
  'throws-late': async (req, res) => {
    res.writeHead(200, TEXT).write('first ');
    res.write('second ');
    await turn();
    throw new Error('thrown late');
  },
  status: (req, res, url) => json(res, Number(url.searchParams.get('code')), {code: Number(url.searchParams.get('code'))}),
  'retry-after': (req, res) => res.writeHead(503, {...TEXT, 'Retry-After': '7'}).end('later'),
  deferred: async (req, res) => {
    await txOf(req).query('INSERT INTO taken (id) VALUES (1)');
    json(res, 201, {deferred: true});
  },
  deadlock: async (req, res) => {
    await txOf(req).query('SELECT deadlock()');
    say(res, 201, 'deadlock');
  },
  swallowed: async (req, res) => {
    await txOf(req).query('SELECT 1/0').catch(() => {});
    say(res, 201, 'swallowed');
  },
  commit: async (req, res) => {
    await txOf(req).query('COMMIT');
    say(res, 201, 'commit');
  },
  'begin-commit': async (req, res) => {
    const client = on ? txOf(req) : await pool.connect();
    await client.query('BEGIN');
    await client.query("INSERT INTO effect (name) VALUES ('begin-commit')");
    await client.query('COMMIT');
    if (!on) client.release();
    say(res, 201, 'begin-commit');
  },
  nested: async (req, res) => {
    await nested(req);
    json(res, 201, {nested: true});
  },
  role: async (req, res) => {
    if (on) await txOf(req).query('SET LOCAL ROLE reader');
    await effect(req, 'role');
    say(res, 201, 'role');
  },
  background: (req, res) => {
    after(() => elsewhere('background-task'), res);
    say(res, 202, 'background');
  },
  'late-tx': (req, res) => {
    after(() => lateTx(req), res);
    say(res, 202, 'late-tx');
  },
  second: async (req, res) => {
    await pool.query('SELECT 1');
    json(res, 201, {second: 1});
  },

  'two-answers': (req, res) => {
    say(res, 201, 'first');
    say(res, 202, 'second');
  },
  'no-answer': () => {},
  destroyed: (req, res) => res.writeHead(200, TEXT).write('half ', () => res.destroy()),
  short: (req, res) => res.writeHead(200, {...TEXT, 'Content-Length': '10'}).end('short'),
  long: (req, res) => res.writeHead(200, {...TEXT, 'Content-Length': '4'}).end('too long'),
  'invalid-status': (req, res) => say(res, 99, 'odd'),
  'bad-header': (req, res) => res.writeHead(200, {'X-Bad': 'a\nb'}).end('odd'),
  'early-hints': (req, res) => {
    res.writeEarlyHints({link: '</style.css>; rel=preload'});
    say(res, 200, 'hints');
  },
  trailers: (req, res) => {
    res.writeHead(200, {...TEXT, Trailer: 'X-Checksum'}).write('with trailers');
    res.addTrailers({'X-Checksum': '42'});
    res.end();
  },
  events: async (req, res) => {
    res.writeHead(200, {'Content-Type': 'text/event-stream'}).write('data: one\n\n');
    await pool.query('SELECT gate()');
    res.end('data: two\n\n');
  },
  gate: async (req, res) => {
    res.writeHead(200, TEXT).write('before ');
    await txOf(req).query('SELECT gate()');
    if (!res.destroyed) res.write('after');
    res.end();
  },
};
// What inserts its effect itself.
const BY_ITSELF = new Set(['begin-commit', 'nested', 'role']);

async function handle(req, res) {
  const url = new URL(req.url, 'http://transparency.test');
  const name = url.pathname.slice(1);
  const handler = handlers[name];
  if (req.method === 'GET' && name === 'cacheable') {
    const headers = {ETag: '"v1"', 'Last-Modified': 'Sat, 01 Jan 2022 00:00:00 GMT'};
    if (req.headers['if-none-match'] === '"v1"') res.writeHead(304, headers).end();
    else res.writeHead(200, {...TEXT, ...headers}).end('cacheable');
  } else if (req.method === 'HEAD' && name === 'cacheable') {
    res.writeHead(200, {...TEXT, ETag: '"v1"', 'Content-Length': '9'}).end();
  } else if (!handler) {
    say(res, 404, 'There is none.');
  } else if (req.method !== 'POST') {
    say(res, 405, 'Only POST.');
  } else {
    if (!BY_ITSELF.has(name)) await effect(req, name);
    await handler(req, res, url);
  }
}

/** As one does it by hand: what is thrown is a 500, or the end of the connection. */
const caught = (handler) => async (req, res) => {
  try {
    await handler(req, res);
  } catch {
    if (res.headersSent) res.destroy();
    else res.writeHead(500).end('error');
  }
};

const served = on ? once.http(options, caught(handle)) : caught(handle);

/** Neighbours that stand outside of pgonce. */
function outside(req, res) {
  if (req.url === '/-/pool') {
    json(res, 200, inUse());
    return;
  }
  if (req.url.startsWith('/cors')) {
    res.setHeader('Access-Control-Allow-Origin', 'https://shop.example');
    res.setHeader('Access-Control-Allow-Credentials', 'true');
    res.setHeader('Access-Control-Expose-Headers', 'Idempotency-Replayed');
    res.setHeader('Vary', 'Origin');
    if (req.method === 'OPTIONS') {
      res.writeHead(204, {'Access-Control-Allow-Methods': 'GET, POST', 'Access-Control-Allow-Headers': 'Idempotency-Key, Content-Type'}).end();
      return;
    }
  }
  if (req.url.startsWith('/outer')) {
    res.setHeader('X-Outer', 'one');
    res.setHeader('Link', '</outer>; rel=help');
    res.setHeader('Content-Language', 'de');
  }
  if (req.url.startsWith('/auth') && req.headers.authorization !== 'Basic dTpw') {
    res.writeHead(401, {...TEXT, 'WWW-Authenticate': 'Basic realm="x"'}).end('Unauthorized');
    return;
  }
  served(req, res);
}

http.createServer(outside).listen(process.env.PORT, '127.0.0.1');
http2.createServer(outside).listen(process.env.PORT_HTTP2, '127.0.0.1');
