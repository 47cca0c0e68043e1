// SPDX-License-Identifier: PostgreSQL
// Several statements in one round trip: what libpq calls a pipeline, with one Sync at its end. The first that fails stops those behind it.
// pg takes any object with submit() for a query; its own Query as the base lets it through where the pool pipelines.
'use strict';

const {createHash} = require('crypto');
const {Query} = require('pg');

// A name identifies its text: the calls that it makes, and a hash. So another client that used the name on this server connection prepared the same text.
const names = new Map();
// What each connection has prepared.
const prepared = new WeakMap();

function nameOf(text) {
  if (!names.has(text)) {
    const calls = new Set(text.match(/once\.\w+/g)?.filter((call) => !call.endsWith('fingerprint')));
    names.set(text, `${([...calls].join(' ') || text).slice(0, 38)} ${createHash('sha256').update(text).digest('hex').slice(0, 24)}`);
  }
  return names.get(text);
}

const NONE = [];
const WHOLE = {portal: '', rows: 0};
const NOT_PREPARED = '26000';
const asIs = (value) => value;

class Batch extends Query {
  /** statements: [text, values]; values are strings, Buffers (sent as bytes) or null. prepare: each is parsed once for each connection. */
  constructor(statements, prepare) {
    super({text: ''});
    this.statements = statements;
    this.prepare = prepare;
    this.results = [];
    this.rowsNow = [];
    this.done = new Promise((resolve, reject) => {
      this.callback = (error) => (error ? reject(error) : resolve(this.results));
    });
  }

  submit(connection) {
    connection.stream.cork?.();
    if (!prepared.has(connection)) prepared.set(connection, new Set());
    this.known = prepared.get(connection);
    try {
      for (const [text, values = NONE] of this.statements) {
        const name = this.prepare ? nameOf(text) : '';
        if (name === '' || !this.known.has(name)) {
          // One of that name may be there: after an error here, or left by another client of a pooler.
          if (name !== '') connection.close({type: 'S', name});
          connection.parse({text, name, types: NONE});
        }
        connection.bind({portal: '', statement: name, values, binary: false, valueMapper: asIs});
        connection.execute(WHOLE);
      }
      connection.sync();
    } finally {
      connection.stream.uncork?.();
    }
    return null;
  }

  handleRowDescription() {}

  handleDataRow(message) {
    this.rowsNow.push(message.fields);
  }

  handleCommandComplete(message) {
    if (this.prepare) this.known.add(nameOf(this.statements[this.results.length][0]));
    this.results.push({tag: message.text, rows: this.rowsNow});
    this.rowsNow = [];
  }

  handleEmptyQuery() {}

  handlePortalSuspended() {}

  handleError(error) {
    if (error.code === NOT_PREPARED) this.known?.clear();
    this.callback(error);
  }

  handleReadyForQuery() {
    this.callback(null);
  }
}

const isValue = (value) => value === null || value === undefined || typeof value === 'string' || Buffer.isBuffer(value);

/** [{tag, rows}] of each; rows of texts or nulls. */
function batch(client, statements, prepare = false) {
  // pg would throw it while it sends, where no code catches it.
  if (!statements.every(([, values = NONE]) => values.every(isValue))) {
    return Promise.reject(Object.assign(new TypeError('pgonce: a parameter is neither a string nor bytes'), {unsent: true}));
  }
  const query = new Batch(statements, prepare);
  client.query(query);
  return query.done;
}

module.exports = {batch, NOT_PREPARED};
