// SPDX-License-Identifier: PostgreSQL
// One endpoint three times: as it is, with pgonce, and with express-idempotency on Redis. In a directory with node_modules.
'use strict';

const load = (name) => require(require.resolve(name, {paths: [process.cwd()]}));
const express = load('express');
const {Pool} = load('pg');
const {Once} = load('pgonce');
const idempotency = load('express-idempotency');
const {default: RedisAdapter} = load('express-idempotency-redis-adapter');

const INSERT = 'INSERT INTO orders (item, amount) VALUES ($1, $2) RETURNING id';
const pool = new Pool({max: 16});
const once = new Once(pool);
const app = express();
app.disable('x-powered-by');
app.disable('etag');

async function order(tx, body) {
  const {rows: [{id}]} = await tx.query(INSERT, [body.order, body.amount]);
  return {order: id, item: body.order};
}

async function bare(req, res) {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    const placed = await order(client, req.body);
    await client.query('COMMIT');
    res.status(201).json(placed);
  } catch (error) {
    await client.query('ROLLBACK');
    throw error;
  } finally {
    client.release();
  }
}

async function main() {
  const adapter = new RedisAdapter({connectionConfig: {socket: {path: process.env.REDIS_SOCKET}}});
  await adapter.connect();
  app.post('/bare', express.json(), (req, res, next) => bare(req, res).catch(next));
  app.post('/pgonce', once.express({scope: 'orders', tenant: false}), express.json(), (req, res, next) =>
    order(req.pgonce.tx, req.body).then((placed) => res.status(201).json(placed), next));
  app.post('/redis', express.json(), idempotency.idempotency({dataAdapter: adapter}), (req, res, next) => {
    if (!idempotency.getSharedIdempotencyService().isHit(req)) bare(req, res).catch(next);
  });
  app.listen(Number(process.env.PORT), '127.0.0.1').keepAliveTimeout = 60000;
}

main();
