// SPDX-License-Identifier: PostgreSQL
// Gives the Node programs of docs/how their messages: see run.py.
const fs = require('node:fs');
const inbox = require('./inbox.js');
const webhooks = require('./webhooks.js');

const cases = JSON.parse(fs.readFileSync(process.env.CASES));
const each = async (list, f) => {
  const found = [];
  for (const one of list) found.push(await f(one));
  return found;
};
const rabbit = async ([event, body]) => {
  const said = [];
  const channel = {ack: () => said.push('ack'), nack: (message, all, requeue) => said.push(requeue && !all ? 'nack' : 'dropped')};
  await inbox.onMessage(channel)({properties: {messageId: event}, content: Buffer.from(body)});
  return said.length === 1 ? said[0] : said;
};

(async () => {
  const said = {
    kafka: await each(cases.kafka, ([event, body]) =>
      inbox.eachMessage({message: {headers: {'Pgonce-Event-Id': Buffer.from(event)}, value: Buffer.from(body)}}).then(() => 'done', () => 'error')),
    sqs: await each(cases.sqs, async (event) => (await inbox.handler(event)).batchItemFailures.map((failed) => failed.itemIdentifier)),
    rabbit: await each(cases.rabbit, rabbit),
    stripe: await each(cases.stripe, ({signature, body}) => webhooks.stripe(cases.secret, {'stripe-signature': signature}, Buffer.from(body))),
    github: await each(cases.github, ({delivery, signature, body}) =>
      webhooks.github(cases.secret, {'x-hub-signature-256': signature, 'x-github-delivery': delivery}, Buffer.from(body))),
  };
  fs.writeSync(1, JSON.stringify(said) + '\n');
  process.exit(0);
})();
