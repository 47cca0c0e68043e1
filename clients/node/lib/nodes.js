// SPDX-License-Identifier: PostgreSQL
// Several nodes that share the tenants (docs/how/scale.md): which of them serves a tenant. The nodes say so; nothing is computed here. This knowledge is a hint: the guard of a node refuses
// every other tenant, and then all nodes are asked again.
'use strict';

const errors = require('./errors');
const {checkPool} = require('./route');
const {Session} = require('./session');
const {DEADLINE_MS} = require('./transaction');

const ASK_MS = 5000; // for the answer of a node
const AGAIN_MS = 1000; // between two inquiries because a node is away
const TENANTS_MAX = 10000; // whose slots are remembered

const SLOTS = ['SELECT slot, epoch, open FROM once.slots()'];
const slotOf = (tenant) => ['SELECT once.slot_of($1::text)', [tenant]];

/** One statement, answered in time or not at all. */
async function ask(pool, statement, ms) {
  const begun = performance.now();
  const session = await Session.open(pool, {ms});
  session.open = false;
  session.limit(ms - (performance.now() - begun), () => session.cut());
  try {
    const [{rows}] = await session.send([statement]);
    return rows;
  } finally {
    await session.close();
  }
}

/** Host, port and database of a pool, for people; never its password. */
function addressOf(pool) {
  try {
    const {host, port, database} = new pool.Client(pool.options);
    return ` (${host}:${port}/${database})`;
  } catch { // a pool that somebody has wrapped
    return '';
  }
}

class Nodes {
  #nodes; #tenants = new Map(); #asking; #asked = false; #askedAt;

  constructor(pools) {
    if (!Array.isArray(pools) || pools.length === 0) throw new TypeError('pgonce: nodes([pool, ...]) needs the pools of the nodes');
    // slots: by slot, {epoch, open}; none if it is not divided; undefined before its first answer. away: why it did not answer the last time.
    this.#nodes = pools.map((pool, i) => ({number: i + 1, pool: checkPool(pool, 'nodes([pool, ...]) needs Pools of pg'), slots: undefined, away: undefined}));
  }

  async poolOf(tenant, refused) {
    if (!this.#asked) await this.#inquire();
    let found = await this.#find(tenant);
    if (refused) {
      // Also an inquiry that was under way when the node refused may be too old.
      for (let tries = 0; tries < 2 && !(found.epoch > refused.epoch) && (tries === 0 || found.open); tries++) {
        await this.#inquire();
        found = await this.#find(tenant);
      }
    } else if (found.fault && performance.now() - this.#askedAt >= AGAIN_MS) {
      await this.#inquire();
      found = await this.#find(tenant);
    }
    if (found.fault) throw found.fault;
    return found.pool;
  }

  /** {pool, epoch, open} for a tenant, without an inquiry; or {fault}. */
  async #find(tenant) {
    const [first, ...others] = this.#nodes;
    if (others.length === 0 && first.slots?.length === 0) return {pool: first.pool, open: true};
    const undivided = this.#nodes.find(({slots}) => others.length > 0 && slots?.length === 0);
    if (undivided) {
      return {fault: new errors.OnceError('not_divided', `${this.#named(undivided)} is not divided, so it cannot share the tenants with others: CALL once.divide(...) there`)};
    }
    if (this.#nodes.every(({slots}) => slots === undefined)) return {fault: this.#unavailable('no node is known')};
    return this.#place(await this.#slotOf(tenant));
  }

  #place(slot) {
    const places = this.#nodes.filter(({slots}) => slots?.[slot]).map(({pool, slots}) => ({pool, ...slots[slot]}));
    const highest = places.reduce((best, each) => (each.epoch > best.epoch ? each : best));
    // Another node that has it open is older: its answer, while it is away, or itself, as a standby that was promoted without a close.
    const open = places.find((each) => each.open && each.epoch === highest.epoch);
    if (open) return open;
    if (this.#nodes.some(({away}) => away)) return {fault: this.#unavailable(`no node is known that serves slot ${slot}`)};
    return highest; // which refuses it
  }

  #named({number, pool}) {
    return `node ${number}${addressOf(pool)}`;
  }

  #unavailable(what) {
    const away = this.#nodes.filter((node) => node.away);
    const which = `${away.map((node) => this.#named(node)).join(' and ')} did not answer`;
    return new errors.OnceError('connection', `${what}: ${which}; nothing was done`, {status: 503, retryable: true, cause: away[0]?.away});
  }

  /** Asks every node for its slots. Those who come meanwhile share it. Never rejects. */
  #inquire() {
    this.#asking ??= Promise.all(this.#nodes.map(async (node) => {
      try {
        const rows = await ask(node.pool, SLOTS, ASK_MS);
        node.slots = rows.map(([, epoch, open]) => ({epoch: Number(epoch), open: open === 't'}));
        node.away = undefined;
      } catch (error) {
        node.away = error;
      }
    })).then(() => {
      this.#asked = true;
      this.#askedAt = performance.now();
      this.#asking = undefined;
    });
    return this.#asking;
  }

  #slotOf(tenant) {
    const known = this.#tenants.get(tenant) ?? this.#askSlotOf(tenant).catch((error) => {
      this.#tenants.delete(tenant);
      throw error;
    });
    this.#tenants.delete(tenant); // the last one that was used is the last one to be forgotten
    this.#tenants.set(tenant, known);
    if (this.#tenants.size > TENANTS_MAX) this.#tenants.delete(this.#tenants.keys().next().value);
    return known;
  }

  /** Of any node: the function is the same on each. Many may ask at once. */
  async #askSlotOf(tenant) {
    let unanswered;
    for (const {pool} of [...this.#nodes].sort((a, b) => Boolean(a.away) - Boolean(b.away))) {
      try {
        const [[slot]] = await ask(pool, slotOf(tenant), DEADLINE_MS);
        return Number(slot);
      } catch (error) {
        unanswered ??= error;
      }
    }
    throw unanswered;
  }
}

/** A function of the tenant, for new Once: it asks the nodes which of them serves the tenant. */
function nodes(pools) {
  const known = new Nodes(pools);
  return (tenant, refused) => known.poolOf(tenant, refused);
}

module.exports = {nodes};
