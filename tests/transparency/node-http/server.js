// SPDX-License-Identifier: PostgreSQL
// The handlers of cases.json in plain node:http: what a framework has is done by hand.
'use strict';

const fs = require('fs');
const http = require('http');
const path = require('path');
const {createRequire} = require('module');
const {Readable} = require('stream');
const {pipeline} = require('stream/promises');

const from = createRequire(require.resolve('../node/common.js'));
const {effect, files, inUse, lines, on, once, options, order, pieces, text, txOf} = from('./common.js');

const json = (res, status, value) => res.writeHead(status, {'Content-Type': 'application/json'}).end(JSON.stringify(value));
const plain = {'Content-Type': 'text/plain; charset=utf-8'};

const handlers = {
  json: (req, res) => json(res, 201, order),
  text: (req, res) => res.writeHead(200, plain).end(text),
  empty: (req, res) => res.end(),
  'no-content': (req, res) => res.writeHead(204).end(),
  'stream-bytes': async (req, res) => {
    res.setHeader('Content-Type', 'application/octet-stream');
    for (const piece of pieces) {
      res.write(piece);
      await new Promise(setImmediate);
    }
    res.end();
  },
  'stream-text': (req, res) => Readable.from(lines).pipe(res.writeHead(200, plain)),
  file: async (req, res) => {
    const file = path.join(files, 'report.txt');
    res.writeHead(200, {...plain, 'Content-Length': (await fs.promises.stat(file)).size});
    await pipeline(fs.createReadStream(file), res);
  },
  redirect: (req, res) => res.writeHead(303, {Location: '/json'}).end(),
  cookies: (req, res) => res.writeHead(200, {...plain, 'Set-Cookie': ['a=1; Path=/; HttpOnly', 'b=2; Path=/; SameSite=Lax']}).end('cookies'),
  repeated: (req, res) => res.writeHead(200, [
    ['Link', '</a>; rel=next'], ['Link', '</b>; rel=last'], ['X-Part', 'one'], ['X-Part', 'two'], ['Vary', 'Origin'], ['Vary', 'Accept'], ['Cache-Control', 'no-store'],
  ].flat()).end('repeated'),
  cors: (req, res) => json(res, 201, {cors: true}),
  throws: () => {
    throw new Error('thrown');
  },
  status: (req, res, url) => json(res, Number(url.searchParams.get('code')), {code: Number(url.searchParams.get('code'))}),
  'no-answer': () => {},
  gate: async (req, res) => {
    res.writeHead(200, plain).write('before ');
    await txOf(req).query('SELECT gate()');
    if (!res.destroyed) res.write('after');
    res.end();
  },
};

async function handle(req, res) {
  const url = new URL(req.url, 'http://transparency.test');
  const name = url.pathname.slice(1);
  const handler = handlers[name];
  if (!handler) {
    res.writeHead(404).end();
    return;
  }
  if (req.method === 'POST') await effect(req, name);
  await handler(req, res, url);
}

/** As one does it by hand: what is thrown is a 500. */
const caught = (handler) => async (req, res) => {
  try {
    await handler(req, res);
  } catch {
    if (!res.headersSent) res.statusCode = 500;
    res.end();
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
  served(req, res);
}

http.createServer(outside).listen(process.env.PORT, '127.0.0.1');
