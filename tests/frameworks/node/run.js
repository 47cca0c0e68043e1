// SPDX-License-Identifier: PostgreSQL
// run.js RESULTS FOLDER...   The files *.test.js and *.test.mjs below some folders by Node's test runner; what became of each test is written to RESULTS as pairs.
'use strict';

const fs = require('fs');
const path = require('path');
const {run} = require('node:test');

const TEST_MS = 120000;
const [results, ...folders] = process.argv.slice(2);

const files = folders.flatMap((folder) => fs.readdirSync(folder, {recursive: true}).map((file) => path.resolve(folder, file))).filter((file) => /\.test\.m?js$/.test(file)).sort();
const around = []; // the names of the tests around the one that runs now
const outcomes = [];

function note({name, nesting, skip, todo}, outcome) {
  outcomes.push([[...around.slice(0, nesting), name.replace(`${process.cwd()}/`, '')].join(' > '), skip || todo ? 'skipped' : outcome]);
}

run({files, concurrency: 2, timeout: TEST_MS})
  .on('test:start', ({name, nesting}) => (around[nesting] = name))
  .on('test:pass', (test) => note(test, 'passed'))
  .on('test:fail', (test) => {
    note(test, 'failed');
    const {error} = test.details;
    console.log(outcomes.at(-1)[0], error.cause?.stack ?? error.cause ?? error);
  })
  .on('end', () => fs.writeFileSync(results, JSON.stringify(outcomes)))
  .resume();
