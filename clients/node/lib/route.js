// SPDX-License-Identifier: PostgreSQL
// Where a call goes: to one pool, or to the pool that a function of the tenant gives (nodes.js is one). Called by all that opens a connection for an intent.
'use strict';

const errors = require('./errors');

/** The pool, if it is one. An idle connection that the server ends is no error: the pool makes another one. Without a listener the process would end. */
function checkPool(pool, message) {
  if (typeof pool?.connect !== 'function' || typeof pool.query !== 'function' || !('totalCount' in pool)) throw new TypeError(`pgonce: ${message}`);
  if (pool.listenerCount?.('error') === 0) pool.on('error', () => {});
  return pool;
}

class Route {
  #given;

  /** given: a pool of pg, or function (tenant, refused), refused a SlotClosed or undefined, that returns such a pool, or a promise. */
  constructor(given) {
    this.#given = typeof given === 'function' ? given : checkPool(given, 'new Once(pool) needs a Pool of pg, or a function of the tenant that returns one');
  }

  /** The one pool; undefined if there are several. */
  get pool() {
    return typeof this.#given === 'function' ? undefined : this.#given;
  }

  async poolOf(tenant, refused) {
    return this.pool ?? checkPool(await this.#given(tenant, refused), 'the function of the tenant must return a Pool of pg');
  }

  /**
   * attempt(pool, begun) at the node of the tenant. If that node refuses it (P4097) before begun() was called, nothing has happened: once more where the function says then.
   * begun: from now on code of the application runs.
   */
  async at(tenant, attempt) {
    let hasBegun = false;
    const begun = () => {
      hasBegun = true;
    };
    const tried = (pool) => attempt(pool, begun).catch((error) => {
      throw hasBegun ? error : errors.ofContract(error);
    });
    if (this.pool) return tried(this.pool);
    const pool = await this.poolOf(tenant);
    try {
      return await tried(pool);
    } catch (error) {
      const refused = errors.ofDriver(error);
      if (hasBegun || !(refused instanceof errors.SlotClosed)) throw error;
      return tried(await this.poolOf(tenant, refused));
    }
  }
}

module.exports = {Route, checkPool};
