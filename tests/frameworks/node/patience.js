// SPDX-License-Identifier: PostgreSQL
// For Node's runner, in both runs: a test that waits for something in vain ends, so that those behind it in its file run; and its name has its file's.
'use strict';

const Module = require('module');
const path = require('path');

const TEST_MS = 10000;
const {_load} = Module;
const patient = new Map();

/** test(name?, options?, function?) */
function withLimit(test) {
  const limited = (...args) => {
    const at = args.findIndex((each) => typeof each === 'object' && each !== null);
    if (at >= 0) args[at] = {timeout: TEST_MS, ...args[at]};
    else args.splice(typeof args[0] === 'string' ? 1 : 0, 0, {timeout: TEST_MS});
    if (typeof args[0] === 'string') args[0] = `${path.relative('', process.argv[1])} > ${args[0]}`;
    return test(...args);
  };
  return Object.assign(limited, test);
}

Module._load = function load(request, ...more) {
  const exports = _load.call(this, request, ...more);
  if (request !== 'node:test') return exports;
  if (!patient.has(exports)) {
    const limited = withLimit(exports.test);
    patient.set(exports, Object.assign(withLimit(exports), exports, {test: limited, it: limited, default: limited}));
  }
  return patient.get(exports);
};
