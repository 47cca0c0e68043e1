// SPDX-License-Identifier: PostgreSQL
// The agent of the Node client (spec/cases/README.md): says `ready`, and answers each line of JSON with another. With a PORT it serves HTTP there, for the torture, by the framework that stands where DRIVER does.
'use strict';

const readline = require('readline');

const calls = require('./calls');
const {servesAt} = require('./world');
const torture = require('./torture');

async function answerLines() {
  const lines = readline.createInterface({input: process.stdin})[Symbol.asyncIterator]();
  const say = (said) => process.stdout.write(`${JSON.stringify(said)}\n`);
  const converse = (said) => {
    say(said);
    return lines.next();
  };
  process.stdout.write('ready\n');
  for await (const line of lines) {
    const order = JSON.parse(line);
    say(await (order.call ? calls.answer(order, converse) : torture.answer(order)));
  }
  process.exit(0);
}

if (servesAt) torture.serve();
else answerLines();
