// SPDX-License-Identifier: PostgreSQL
// An order service: each Idempotency-Key of a customer takes an item from stock once, places one order, announces it once, and gets one answer.
'use strict';

const {readFileSync} = require('fs');
const {join} = require('path');

const express = require('express');
const {Pool} = require('pg');
const {Once} = require('pgonce');

const pool = new Pool({max: 20}); // PGHOST, PGDATABASE, ... say where
const once = new Once(pool);
const app = express();

/** Whose key it is: what the token proves, and nothing that a client may choose. */
async function authenticated(req, res, next) {
  const token = (req.headers.authorization ?? '').replace(/^Bearer /, '');
  const {rows} = await pool.query('SELECT name FROM customer WHERE token = $1', [token]);
  if (rows.length === 0) return res.status(401).json({error: 'who are you?'});
  req.customer = rows[0].name;
  return next();
}

const protect = once.express({scope: 'orders', tenant: (req) => req.customer, waitMs: 5000});

app.post('/orders', authenticated, protect, express.json(), async (req, res) => {
  const {item, quantity} = req.body;
  const {tx, emit} = req.pgonce;
  const {rowCount} = await tx.query('UPDATE stock SET quantity = quantity - $2 WHERE item = $1 AND quantity >= $2', [item, quantity]);
  if (rowCount === 0) return res.status(422).json({error: 'not in stock'}); // for good: the retry gets it too
  const {rows} = await tx.query('INSERT INTO customer_order (customer, item, quantity) VALUES ($1, $2, $3) RETURNING id', [req.customer, item, quantity]);
  await emit('order.placed', {order: rows[0].id, item, quantity}, {aggregateType: 'order', aggregateId: rows[0].id});
  return res.status(201).json({order: rows[0].id, item, quantity});
});

async function main() {
  await pool.query(readFileSync(join(__dirname, 'schema.sql'), 'utf8'));
  const port = Number(process.env.PORT ?? 3000);
  app.listen(port, '127.0.0.1', () => console.log(`orders: http://127.0.0.1:${port}/orders`));
}

main().catch((error) => {
  console.error(`orders: ${error.message}`);
  process.exit(1);
});
