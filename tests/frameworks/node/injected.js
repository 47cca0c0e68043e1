// SPDX-License-Identifier: PostgreSQL
// What is injected into the suites of Node's frameworks has in common: a pool, our options, and a key for each request that has none.
'use strict';

const {randomUUID} = require('crypto');
const {createRequire} = require('module');
const http = require('http');
const path = require('path');

const client = path.resolve(__dirname, '../../../clients/node');
const {Pool} = createRequire(`${client}/index.js`)('pg');
const {Once} = require(client);

// Wide: a handler that never answers holds its connection until its time is up, and the tests after it are not about that.
const pool = new Pool({connectionString: process.env.DATABASE_URL, max: 50, allowExitOnIdle: true});
const once = new Once(pool, {logger: {error: () => {}}});
// All of them: most of a framework's tests send GET. Handlers that never answer are ended soon.
const options = {scope: 'frameworks', tenant: false, methods: http.METHODS, handlerMs: 5000};

/** Seen by our middleware alone: tests compare the headers that a handler gets. */
function giveKey(req) {
  if (!req.rawHeaders.some((each, i) => i % 2 === 0 && each.toLowerCase() === 'idempotency-key')) req.rawHeaders.push('Idempotency-Key', `"${randomUUID()}"`);
}

/** change(exports) of each module that is loaded from a file whose path ends so; it returns the exports to give instead. */
function onLoad(end, change) {
  const Module = require('module');
  const {_load, _resolveFilename} = Module;
  const changed = new Map();
  Module._load = function load(request, parent, isMain) {
    const exports = _load.call(this, request, parent, isMain);
    if (!/^[./]/.test(request)) return exports;
    const file = _resolveFilename.call(Module, request, parent, isMain);
    if (!file.endsWith(end)) return exports;
    if (!changed.has(exports)) changed.set(exports, change(exports));
    return changed.get(exports);
  };
}

module.exports = {giveKey, onLoad, once, options};
