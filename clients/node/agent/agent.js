// SPDX-License-Identifier: PostgreSQL
// The agent of the Node client (clients/conformance/README.md): says `ready`, and answers each line of JSON with another. With a PORT it serves HTTP there, for the torture.
'use strict';

const readline = require('readline');

const calls = require('./calls');
const {servesAt} = require('./world');
const torture = require('./torture');

async function answerLines() {
  process.stdout.write('ready\n');
  for await (const line of readline.createInterface({input: process.stdin})) {
    const order = JSON.parse(line);
    process.stdout.write(`${JSON.stringify(await (order.call ? calls.answer(order) : torture.answer(order)))}\n`);
  }
  process.exit(0);
}

if (servesAt) torture.serve();
else answerLines();
