// SPDX-License-Identifier: PostgreSQL
// The endpoint of README.md whose effect is elsewhere, as it stands there: what each answer of the provider becomes, for the first caller and for a retry.
'use strict';

const assert = require('node:assert/strict');
const {spawn} = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const os = require('node:os');
const path = require('node:path');
const readline = require('node:readline');
const {after, before, test} = require('node:test');

const {poolOf, startServer} = require('./support');

const HERE = path.join(__dirname, '..');

let server;
let pool;
let provider; // what it is asked, and what it answers
let service;
let where;

async function listening(app) {
  await new Promise((resolve) => app.listen(0, '127.0.0.1', resolve));
  return app.address().port;
}

/** The file, with the packages where npm would have put them; it prints the port that the system gave it. */
function written() {
  const [, code] = fs.readFileSync(path.join(HERE, 'README.md'), 'utf8').match(/^## An endpoint whose effect is elsewhere\n[^]*?^```js\n([^]*?)^```/m);
  where = fs.mkdtempSync(path.join(os.tmpdir(), 'pgonce-recipe-'));
  fs.mkdirSync(path.join(where, 'node_modules'));
  for (const [name, target] of [['pgonce', HERE], ...['express', 'pg'].map((each) => [each, path.join(HERE, 'node_modules', each)])]) {
    fs.symlinkSync(target, path.join(where, 'node_modules', name));
  }
  fs.writeFileSync(path.join(where, 'charges.js'), code);
  const told = "const {Server} = require('net'); const {listen} = Server.prototype; Server.prototype.listen = function (...args) {" +
    "this.once('listening', () => console.log(this.address().port)); return listen.apply(this, args); };";
  fs.writeFileSync(path.join(where, 'port.js'), told);
}

before(async () => {
  server = await startServer();
  pool = poolOf(server);
  const app = http.createServer(async (req, res) => {
    const body = JSON.parse((await req.toArray()).join(''));
    provider.asked.push([req.headers['idempotency-key'], body]);
    await provider.answer(res, body);
  });
  provider = {asked: [], app, port: await listening(app)};
  written();
  const env = {
    ...process.env, PORT: '0', PROVIDER_URL: `http://127.0.0.1:${provider.port}`, NODE_ENV: 'test', PGHOST: '127.0.0.1', PGPORT: String(server.port), PGUSER: server.user, PGDATABASE: server.database,
  };
  service = spawn(process.execPath, ['-r', './port.js', 'charges.js'], {cwd: where, env, stdio: ['ignore', 'pipe', 'pipe']});
  service.port = Number((await readline.createInterface({input: service.stdout})[Symbol.asyncIterator]().next()).value);
  service.lines = [];
  readline.createInterface({input: service.stderr}).on('line', (line) => service.lines.push(line));
});

after(async () => {
  const ended = new Promise((resolve) => service.once('exit', resolve));
  service.kill();
  await ended;
  provider.app.closeAllConnections();
  await new Promise((resolve) => provider.app.close(resolve));
  await pool.end();
  await server.program.close();
  fs.rmSync(where, {recursive: true, force: true});
});

async function ask(key, amount = 1, customer = 'ann') {
  const headers = {'Content-Type': 'application/json', 'X-Customer': customer, ...(key === undefined ? {} : {'Idempotency-Key': key})};
  const answer = await fetch(`http://127.0.0.1:${service.port}/charges`, {method: 'POST', headers, body: JSON.stringify({amount})});
  const text = await answer.text();
  const problem = answer.headers.get('Content-Type') === 'application/problem+json' ? JSON.parse(text).type.split(':').at(-1) : undefined;
  return {status: answer.status, type: answer.headers.get('Content-Type'), text, problem, retryAfter: answer.headers.get('Retry-After'), replayed: answer.headers.get('Idempotency-Replayed')};
}

function answers(status, headers, text) {
  provider.asked.length = 0;
  provider.answer = (res) => res.writeHead(status, {'Content-Type': 'application/json', ...headers}).end(text);
}

const CHARGED = '{"charge": 1, "10": true,  "b": [1.0, "\u00e9"]}';

test('a charge is made once, and each retry gets the same bytes', async () => {
  answers(201, {}, CHARGED);
  const first = await ask('paid');
  assert.deepEqual([first.status, JSON.parse(first.text)], [201, JSON.parse(CHARGED)]);
  answers(500, {}, 'not asked again');
  const {status, text, type} = await ask('"paid"');
  assert.deepEqual({status, text, type}, {status: first.status, text: first.text, type: first.type});
  assert.deepEqual(provider.asked, []);
  const mismatch = await ask('paid', 2);
  assert.deepEqual([mismatch.status, mismatch.problem, mismatch.retryAfter], [422, 'mismatch', null]);
  answers(201, {}, CHARGED);
  assert.equal((await ask('paid', 2, 'bob')).status, 201); // his key is another
  assert.deepEqual(provider.asked, [['bob/paid', {amount: 2}]]);
});

test('a refusal is final, with its bytes', async () => {
  answers(402, {'Content-Type': 'text/plain'}, 'declined\\x');
  const first = await ask('declined');
  answers(201, {}, CHARGED);
  const again = await ask('declined');
  assert.deepEqual([first.status, first.text, first.type, first.replayed], [402, 'declined\\x', 'text/plain', null]);
  assert.deepEqual({...again, replayed: null}, first);
  assert.deepEqual([again.replayed, provider.asked], ['true', []]);
});

for (const status of [503, 429]) {
  test(`${status} with Retry-After says that nothing was done: a retry runs`, async () => {
    answers(status, {'Retry-After': '1'}, '{}');
    const first = await ask(`busy-${status}`);
    assert.deepEqual([first.status, first.problem, first.retryAfter], [502, 'unreached', '5']);
    answers(201, {}, CHARGED);
    assert.equal((await ask(`busy-${status}`)).status, 201);
  });
}

for (const status of [503, 500, 504, 408]) {
  test(`${status} does not say what was done: in doubt, and nothing runs until somebody decides`, async () => {
    const key = `doubt-${status}`;
    answers(status, {}, '{}');
    const first = await ask(key);
    assert.deepEqual([first.status, first.problem, first.retryAfter], [409, 'in-doubt', null]);
    assert.ok(service.lines.at(-1).startsWith('pgonce: problem=in-doubt request='));
    answers(201, {}, CHARGED);
    const again = await ask(key);
    assert.deepEqual([again.status, again.problem, again.retryAfter, provider.asked], [409, 'in-doubt', null, []]);
    const {rows} = await pool.query("SELECT error_code, error_message FROM once.peek('charges', $1, 'ann')", [key]);
    assert.deepEqual(rows, [{error_code: 'Error', error_message: `the provider answered ${status}`}]);
    await pool.query("SELECT once.resolve('charges', $1, 'failed_retryable', 'asked', tenant => 'ann')", [key]);
    assert.equal((await ask(key)).status, 201);
  });
}

test('an answer that breaks off leaves a doubt', async () => {
  provider.answer = (res) => res.destroy();
  assert.equal((await ask('broken')).problem, 'in-doubt');
  assert.equal((await ask('broken')).problem, 'in-doubt');
});

test('a duplicate of a running one is told to come again', async () => {
  let go;
  const asked = new Promise((resolve) => {
    provider.answer = async (res) => {
      resolve();
      await new Promise((release) => (go = release));
      res.writeHead(201).end(CHARGED);
    };
  });
  const first = ask('running');
  await asked;
  const second = await ask('running');
  assert.deepEqual([second.status, second.problem, second.retryAfter], [409, 'active', '1']);
  go();
  assert.equal((await first).status, 201);
});

test('a key that is missing, malformed or too old is refused, and the provider is not asked', async () => {
  answers(201, {}, CHARGED);
  for (const [key, status, problem] of [[undefined, 400, 'key-missing'], ['"open', 400, 'key-malformed'], ['01600000-0000-7000-8000-000000000000', 409, 'expired']]) {
    const answer = await ask(key);
    assert.deepEqual([answer.status, answer.problem, answer.retryAfter], [status, problem, null]);
  }
  assert.deepEqual(provider.asked, []);
});

test('a provider that cannot be reached was not asked; a database that is away keeps it from being asked', async () => {
  provider.app.closeAllConnections();
  await new Promise((resolve) => provider.app.close(resolve));
  const first = await ask('unreached');
  assert.deepEqual([first.status, first.problem, first.retryAfter], [502, 'unreached', '5']);
  assert.ok(service.lines.some((line) => line.startsWith('pgonce: problem=unreached request=')));
  answers(201, {}, CHARGED);
  await new Promise((resolve) => provider.app.listen(provider.port, '127.0.0.1', resolve));
  assert.equal((await ask('unreached')).status, 201);
  provider.asked.length = 0;
  await server.program.tell('stop');
  const away = await ask('away');
  assert.deepEqual([away.status, away.problem, away.retryAfter, provider.asked], [503, 'unavailable', '5', []]);
  await server.program.tell('start');
});
