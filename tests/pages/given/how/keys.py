# SPDX-License-Identifier: PostgreSQL
"""docs/how/keys.md: its send.mjs is tried with a service that loses an answer, asks for patience, and then answers."""

FILES = {
    "try.mjs": """
import assert from 'node:assert';
import http from 'node:http';

const kept = new Map();
globalThis.sessionStorage = {getItem: (name) => kept.get(name) ?? null, setItem: (name, value) => kept.set(name, value), removeItem: (name) => kept.delete(name)};
const {send} = await import('./send.mjs');

const keys = [];
const answers = [
  (res) => res.destroy(),
  (res) => res.writeHead(409, {'Content-Type': 'application/problem+json', 'Retry-After': '1'}).end('{"retryable": true}'),
  (res) => res.writeHead(201, {'Content-Type': 'application/json'}).end('{"order": 1}'),
  (res) => res.writeHead(409, {'Content-Type': 'application/problem+json'}).end('{"retryable": false}'),
  (res) => res.writeHead(200).end('no JSON'),
];
const server = http.createServer((req, res) => { keys.push(req.headers['idempotency-key']); answers.shift()(res); });
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const url = `http://127.0.0.1:${server.address().port}/orders`;

assert.deepEqual(await (await send('cart 7', url, {cart: 7})).json(), {order: 1});
assert.equal(new Set(keys).size, 1, 'each attempt has the same key');
assert.equal(kept.size, 0, 'it is forgotten after a final answer');
assert.equal((await send('cart 8', url, {cart: 8})).status, 409);
assert.equal(kept.size, 1, 'a doubt keeps the key');
assert.equal((await send('cart 8', url, {cart: 8})).status, 200);
assert.equal(new Set(keys).size, 2, 'and the next attempt has it');
server.closeAllConnections();
server.close();
"""
}
AFTER_SH = "node try.mjs"
LANGUAGES = {"`send.mjs`": ""}  # it needs node alone
NEEDS = ("node",)
