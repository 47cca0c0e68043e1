// SPDX-License-Identifier: PostgreSQL
// Several statements in one round trip: what libpq calls a pipeline, with one Sync at its end. The first that fails stops those behind it.
// pg takes any object with submit() for a query; its own Query as the base lets it through where the pool pipelines.
'use strict';

const {Query} = require('pg');

class Batch extends Query {
  /** statements: [text, values]; values are strings, Buffers (sent as bytes) or null. */
  constructor(statements) {
    super({text: ''});
    this.statements = statements;
    this.results = [];
    this.rowsNow = [];
    this.done = new Promise((resolve, reject) => {
      this.callback = (error) => (error ? reject(error) : resolve(this.results));
    });
  }

  submit(connection) {
    connection.stream.cork?.();
    try {
      for (const [text, values = []] of this.statements) {
        connection.parse({text, name: '', types: []});
        connection.bind({portal: '', statement: '', values, binary: false, valueMapper: (value) => value});
        connection.execute({portal: '', rows: 0});
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
    this.results.push({tag: message.text, rows: this.rowsNow});
    this.rowsNow = [];
  }

  handleEmptyQuery() {}

  handlePortalSuspended() {}

  handleError(error) {
    this.callback(error);
  }

  handleReadyForQuery() {
    this.callback(null);
  }
}

/** [{tag, rows}] of each; rows of texts or nulls. */
function batch(client, statements) {
  const query = new Batch(statements);
  client.query(query);
  return query.done;
}

module.exports = {batch};
