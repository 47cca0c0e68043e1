// SPDX-License-Identifier: PostgreSQL
// What all doors share (spec): statuses, problems, keys, fingerprints; and the version.
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const {test} = require('node:test');

const {Pool} = require('pg');

const {Once, OnceError, keyOfHeader} = require('..');
const errors = require('../lib/errors');
const {Route} = require('../lib/route');
const {marked, repeat} = require('../lib/transaction');

test('what an answer says of its effect is what spec/statuses.json says', () => {
  const [guard, lease] = [require('../lib/guard'), require('../lib/lease')];
  const named = {done: 'stored', refused: 'refused', none: 'released', unknown: 'in_doubt'};
  for (const {statuses, headers = [], said, ...meant} of JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/statuses.json'))).cases) {
    for (const status of statuses) {
      const answer = {status, pairs: headers.map((name) => [name, '1']), effect: said === undefined ? [] : [said]};
      assert.deepEqual({transaction: named[guard.effectOf(answer)], elsewhere: named[lease.effectOf(answer)]}, meant, JSON.stringify(answer));
    }
  }
});

test('problem documents are those of spec/problems.json, byte for byte', () => {
  const {problem} = require('../lib/problem');
  const {cases} = JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/problems.json')));
  assert.ok(cases.length > 4);
  for (const {problem: slug, more, document} of cases) {
    const made = problem(slug, {more});
    assert.equal(made.body.toString().replace(made.request, '0123456789abcdef0123456789abcdef'), document);
  }
});

test('a base of problem types that would break the document is refused when it is set', () => {
  const once = new Once(new Pool({max: 1}));
  const {checkBase} = require('../lib/problem');
  const {type_bases: {good, bad}} = JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/problems.json')));
  for (const base of good) assert.equal(checkBase(base), base);
  for (const base of [...bad, 7]) {
    assert.throws(() => once.express({scope: 'orders', tenant: false, problemBase: base}), /problemBase/, base);
    assert.throws(() => once.problems({problemBase: base}), /problemBase/, base);
    assert.throws(() => once.answerOf(new OnceError('active', 'x', {sqlstate: 'P4029'}), {problemBase: base}), /problemBase/, base);
  }
});

test('keys are those of the vectors', () => {
  const {faults} = JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/keys.json')));
  for (const vector of JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/vectors/keys.json'))).keys) {
    const value = vector.header ?? Buffer.from(vector.base64 ?? '', 'base64').toString('latin1');
    const {key: found, fault} = keyOfHeader(value);
    assert.deepEqual([found, fault], [vector.key, vector.refused], value);
    const strict = keyOfHeader(value, {strict: true});
    if (/^ *"/.test(value)) assert.deepEqual([strict.key, strict.fault], [vector.key, vector.refused], value);
    else assert.ok([vector.refused, faults.not_a_string].includes(strict.fault) && strict.key === undefined, value);
  }
});

test('fingerprints that the client computes are those of the vectors', () => {
  const {fingerprintOf, hashedOf} = require('../lib/fingerprint');
  const {salts, requests, bytes} = JSON.parse(fs.readFileSync(path.join(__dirname, '../../../spec/vectors/fingerprints.json')));
  const bodyOf = ({text, base64}) => (text === undefined ? Buffer.from(base64 ?? '', 'base64') : text);
  const same = (vector, request) =>
    assert.equal(fingerprintOf(Buffer.from(salts[vector.tenant], 'hex'), hashedOf(request)).toString('hex'), vector.fingerprint, JSON.stringify(vector));
  const plain = requests.filter((each) => !each.canonical_json);
  for (const each of plain) same(each, {http: {method: each.method, target: each.target, contentType: each.content_type, body: bodyOf(each)}});
  for (const each of bytes) same(each, bodyOf(each));
  assert.ok(plain.length > 10 && bytes.length > 3);
  assert.equal(hashedOf({http: {method: 'POST', target: '/', body: '', canonicalJson: true}}), null);
});

test("the version is the release's", () => {
  const [, version] = fs.readFileSync(path.join(__dirname, '../../../meson.build'), 'utf8').match(/^ {2}version: '([^']+)'/m);
  assert.equal(require('../package.json').version, version);
});

test('a database without the contract does not settle what became of a lost COMMIT, and before it nothing was done', async () => {
  const missing = () => errors.ofContract(Object.assign(new Error('schema "once" does not exist'), {code: '3F000', severity: 'ERROR'}));
  let calls = 0;
  const lost = () => {
    calls += 1;
    throw calls === 1 ? marked(errors.ofConnection(new Error('lost')), {lost: true, unanswered: true}) : missing();
  };
  await assert.rejects(repeat(lost, {deadlineMs: 5000}), {code: 'outcome_unknown'});
  assert.equal(calls, 2);
  await assert.rejects(repeat(() => {
    throw missing();
  }), {code: 'contract', status: 503, sqlstate: '3F000'});
  // What is missing may be the application's own, once its code runs.
  const own = Object.assign(new Error('function f() does not exist'), {code: '42883', severity: 'ERROR'});
  const route = new Route(() => ({connect() {}, query() {}, totalCount: 0}));
  await assert.rejects(route.at('', async (_pool, begun) => {
    begun();
    throw own;
  }), (error) => error === own);
});
