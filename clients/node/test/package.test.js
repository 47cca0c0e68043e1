// SPDX-License-Identifier: PostgreSQL
// The package as `npm pack` makes it.
'use strict';

const assert = require('node:assert/strict');
const {execFileSync} = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const {test} = require('node:test');

const ROOT = path.join(__dirname, '../../..');

function directory(t) {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), 'pgonce-node-'));
  t.after(() => fs.rmSync(made, {recursive: true, force: true}));
  return made;
}

const clean = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^PG(?!ONCE)/.test(name)));

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
