// SPDX-License-Identifier: PostgreSQL
// The connection of an attempt as an effect gets it: inside its transaction, without the means to end it.
'use strict';

const {controlOf} = require('./control');
const errors = require('./errors');

// Whose transaction it is: what an event in it is caused by.
const intents = new WeakMap();

/** The intent in whose attempt this transaction is; undefined where it is the caller's own. */
const intentOf = (tx) => intents.get(tx);

const over = () => new errors.OnceError('not_in_transaction', 'the transaction is over: await what belongs to the effect before its answer');
const refused = (what) => new errors.OnceError('transaction_control',
  `${what} is refused here: the transaction commits with the answer. Leave BEGIN and COMMIT out, or use mode 'lease' and a connection of your own`);

/** As pg tells an error of a query: to its callback, or by its promise; of an object that sends itself, at once. */
function tell(args, error) {
  const callback = args.find((each) => typeof each === 'function');
  if (callback) return void process.nextTick(callback, error);
  if (typeof args[0]?.submit === 'function') throw error;
  return Promise.reject(error);
}

/**
 * A transaction within it (BEGIN ... COMMIT, as an ORM sends them) is a savepoint, by depth; any other control of the transaction is refused.
 * After the transaction the connection is the pool's, and a query would run on its own, or within somebody else's transaction.
 */
function lent(session, intent) {
  const {client} = session;
  let depth = 0;
  const savepoint = {
    begin: () => `SAVEPOINT once_nested_${++depth}`,
    commit: () => `RELEASE SAVEPOINT once_nested_${depth--}`,
    rollback: () => `ROLLBACK TO SAVEPOINT once_nested_${depth--}`,
  };
  const query = (...args) => {
    if (session.over) return tell(args, over());
    const [given] = args;
    const {kind, role} = controlOf(typeof given === 'string' ? given : given?.text ?? given?.cursor?.text);
    if (role) session.otherRole = true;
    if (kind === undefined) return client.query(...args);
    if (kind === 'other' || typeof given.submit === 'function') return tell(args, refused('to control the transaction like this'));
    if (kind !== 'begin' && depth === 0) return tell(args, refused(`a ${kind.toUpperCase()} without a BEGIN`));
    return client.query(savepoint[kind](), ...args.filter((each) => typeof each === 'function'));
  };
  const own = {query, release: () => {}, end: (...args) => tell(args, refused('to end the connection'))};
  const tx = new Proxy(client, {get: (_, name) => (Object.hasOwn(own, name) ? own[name] : Reflect.get(client, name))});
  intents.set(tx, intent);
  return tx;
}

module.exports = {intentOf, lent};
