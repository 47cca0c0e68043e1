// SPDX-License-Identifier: PostgreSQL
// A connection of the caller's pool: taken within a time, given back outside of a transaction, or closed.
'use strict';

const net = require('net');

const {NOT_PREPARED, batch} = require('./batch');
const contract = require('./contract');
const errors = require('./errors');

const OPEN_MS = 30000;
const CLOSE_MS = 5000;
const CANCEL = 80877102; // the code of a CancelRequest

// Their connections change beneath them, as behind a pooler in transaction mode: what one has prepared, the next one does not have.
const shifting = new WeakSet();

/** The pool's connection, or an error within ms. One that comes later goes back at once, and so does one whose asker has left: it never waits in vain. */
function taken(pool, ms, gone) {
  return new Promise((resolve, reject) => {
    let late = false;
    const timer = setTimeout(() => {
      late = true;
      reject(errors.noConnection(pool, ms));
    }, ms);
    const got = (client) => {
      clearTimeout(timer);
      if (!late && !gone?.()) return resolve(new Session(client, pool)); // which listens at once: what has come in one packet with the connection's first answer is handled before a promise is
      client.release();
      return reject(new errors.Left());
    };
    const failed = (error) => {
      clearTimeout(timer);
      reject(error);
    };
    const promised = pool.connect((error, client) => (error ? failed(error) : got(client)));
    promised?.then?.(got, failed); // of a pool that somebody has wrapped
  });
}

class Session {
  /** ms: the longest wait. gone(): has the client left? */
  static async open(pool, {ms = OPEN_MS, gone} = {}) {
    let session;
    try {
      session = await taken(pool, Math.max(1, Math.ceil(ms)), gone);
    } catch (error) {
      if (error instanceof errors.OnceError || error instanceof errors.Left) throw error;
      if (errors.isExhausted(pool, error)) throw errors.noConnection(pool, pool.options.connectionTimeoutMillis);
      throw errors.isAnswer(error) && error.code !== '57P03' && error.code !== '53300' ? error : errors.ofConnection(error);
    }
    if (!session.client.connection?.parse) {
      session.open = false;
      await session.close();
      throw new TypeError('pgonce: a Pool of pg is needed; pg-native is not supported');
    }
    return session;
  }

  constructor(client, pool) {
    this.client = client;
    this.pool = pool;
    this.lost = false;
    this.lose = () => {
      this.lost = true;
    };
    // pg emits the loss of a connection as an event; without a listener it would end the process.
    client.on('error', this.lose);
    client.on('end', this.lose);
  }

  /** What is to happen when it has been held for so long. */
  limit(ms, expired) {
    this.expired = expired;
    this.timer = setTimeout(() => this.expired(), Math.max(0, ms));
  }

  async send(statements) {
    try {
      return await batch(this.client, statements, !shifting.has(this.pool));
    } catch (error) {
      if (error.code === NOT_PREPARED) {
        shifting.add(this.pool);
        error.again = true;
      }
      if (!errors.isAnswer(error) && !error.unsent) this.lost = true;
      throw error;
    }
  }

  /** As if the network had cut it: what was sent stays unanswered. */
  cut() {
    this.lost = true;
    this.client.connection.stream.destroy();
  }

  /** Asks the server to stop the statement that runs here. It may come late, and stop another one: so this connection is used no more. */
  cancel() {
    const {client} = this;
    if (typeof client.secretKey !== 'number' || !(client._getActiveQuery?.() ?? client.activeQuery)) return;
    this.cancelled = true;
    const request = Buffer.alloc(16);
    [16, CANCEL, client.processID, client.secretKey].forEach((each, i) => request.writeInt32BE(each, i * 4));
    const at = client.host?.startsWith('/') ? {path: `${client.host}/.s.PGSQL.${client.port}`} : {host: client.host, port: client.port};
    net.connect(at).on('error', () => {}).setTimeout(CLOSE_MS, function ended() {
      this.destroy();
    }).end(request);
  }

  /** Back to the pool, outside of a transaction; a connection of which that is not certain in time is closed. asked: goes ahead of ROLLBACK; resolves to its SQLSTATE if it fails. */
  async close(asked) {
    if (this.closed) return undefined;
    let refused;
    this.over = this.closed = true;
    clearTimeout(this.timer);
    if (!this.lost && this.open !== false) {
      const timer = setTimeout(() => this.cut(), CLOSE_MS);
      const refusal = () => this.send([asked, contract.ROLLBACK]).then(() => undefined, ({code}) => code);
      if (asked) refused = await refusal();
      if (refused === NOT_PREPARED) refused = await refusal(); // as it is from now on
      if (!asked || (refused && !this.lost)) await this.send([contract.ROLLBACK]).catch(this.lose);
      clearTimeout(timer);
    }
    if (this.cancelled) this.lost = true;
    this.client.off('error', this.lose);
    this.client.off('end', this.lose);
    this.client.release(this.lost);
    return refused;
  }
}

module.exports = {Session};
