// SPDX-License-Identifier: PostgreSQL
// Compiled, never run: the types are those of the README.
import express from 'express';
import {Pool} from 'pg';
import {Failed, FinalFailure, Once, rawBody, type Claim} from '..';

const pool = new Pool();
const once = new Once(pool);

export async function all(): Promise<void> {
  const result = await once.run('orders', 'cart-7', {cart: 7}, async (tx, {emit}) => {
    const {rows} = await tx.query('INSERT INTO orders (cart) VALUES ($1) RETURNING id', [7]);
    await emit('order.placed', {order: rows[0].id}, {aggregateType: 'order', aggregateId: '7'});
    if (rows.length === 0) throw new Failed('no_stock', 'no stock', {status: 409});
    return {status: 201, body: {order: rows[0].id}};
  }, {isolation: 'serializable', waitMs: 100});
  const body: string | undefined = result.body?.toString();
  const claim = await once.claim('charges', 'order-7', body ?? '');
  if (!claim.replayed) await (claim satisfies Claim).complete({status: 200});
  const charge = once.effect({scope: 'charges', key: (order: number) => `order-${order}`}, async (order: number, {signal}) => ({order, aborted: signal.aborted}));
  const charged: {order: number} = await charge(7);
  console.log(charged, new FinalFailure().answer.status);
  // @ts-expect-error a value is put in body
  await once.run('orders', 'cart-7', {}, () => ({order: 7}));
  // @ts-expect-error a scope is needed
  once.express({tenant: false});
}

const app = express();
app.use(express.json({verify: rawBody}));
app.post('/orders', once.express({scope: 'orders', tenant: (req) => req.user.id}), async (req, res) => {
  res.status(201).json({});
});
app.listen(3000);
