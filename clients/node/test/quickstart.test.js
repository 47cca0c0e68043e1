// SPDX-License-Identifier: PostgreSQL
// docs/quickstart-node.md, line by line, as a reader types it; and the package as `npm pack` makes it.
'use strict';

const assert = require('node:assert/strict');
const {execFileSync, spawnSync} = require('node:child_process');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const {test} = require('node:test');

const ROOT = path.join(__dirname, '../../..');
const BUILD = process.env.PGONCE_BUILD ?? path.join(ROOT, 'build');

function directory(t) {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), 'pgonce-node-'));
  t.after(() => fs.rmSync(made, {recursive: true, force: true}));
  return made;
}

async function freePort() {
  for (;;) {
    const port = 20000 + Math.floor(Math.random() * 12000);
    const probe = net.createServer();
    const free = await new Promise((resolve) => probe.once('error', () => resolve(false)).listen(port, '127.0.0.1', () => resolve(true)));
    await new Promise((resolve) => probe.close(resolve));
    if (free) return port;
  }
}

const clean = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^PG(?!ONCE)/.test(name)));

test('the quickstart does what it says', {skip: fs.existsSync(path.join(BUILD, 'cli/pgonce')) ? false : 'the command is not built'}, async (t) => {
  const text = fs.readFileSync(path.join(ROOT, 'docs/quickstart-node.md'), 'utf8');
  const script = [...text.matchAll(/^(?:.*`(?<file>[\w.]+)`:\n\n)?```(?<kind>js|sh)\n(?<body>[^]*?)^```$/gm)]
    .map(({groups: {file, kind, body}}) => (kind === 'js' ? `cat > ${file} <<'END'\n${body}END\n` : body)).join('');
  const where = directory(t);
  // A checkout in which nothing has been installed, as a newcomer's is.
  const fresh = directory(t);
  fs.cpSync(path.join(ROOT, 'clients/node'), path.join(fresh, 'clients/node'), {recursive: true, filter: (from) => path.basename(from) !== 'node_modules'});
  const env = {...clean, PGONCE: fresh, PORT: String(await freePort()), PATH: `${path.join(BUILD, 'cli')}:${process.env.PATH}`};
  const done = spawnSync('bash', ['-em'], {cwd: where, env, input: `trap 'pgonce dev --stop' EXIT\n${script}`, encoding: 'utf8', timeout: 180000});
  assert.equal(done.status, 0, done.stdout + done.stderr);
  const bodies = done.stdout.match(/\{"order":\d+,"item":"lamp"\}/g);
  assert.equal(bodies.length, 2, done.stdout);
  assert.equal(bodies[0], bodies[1]);
  assert.match(done.stdout, /HTTP\/1.1 201 Created[^]*HTTP\/1.1 201 Created[^]*Idempotency-Replayed: true[^]*HTTP\/1.1 422/);
  assert.match(done.stdout, /^1$/m);
});

test('what npm packs is whole: it installs, it is required and imported', (t) => {
  const where = directory(t);
  const npm = (...words) => execFileSync('npm', words, {cwd: where, env: clean, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore']});
  const packed = npm('pack', '--silent', path.join(ROOT, 'clients/node')).trim().split('\n').at(-1);
  fs.writeFileSync(path.join(where, 'package.json'), '{"private": true}');
  npm('install', '--no-audit', '--no-fund', `./${packed}`, 'pg@8');
  const said = execFileSync('node', ['-e', "import('pgonce').then((all) => console.log(all.Once === require('pgonce').Once, typeof all.Failed))"], {cwd: where, encoding: 'utf8'});
  assert.equal(said.trim(), 'true function');
  assert.ok(fs.existsSync(path.join(where, 'node_modules/pgonce/index.d.ts')));
  assert.ok(fs.existsSync(path.join(where, 'node_modules/pgonce/LICENSE')));
});
