// SPDX-License-Identifier: PostgreSQL
// Compiled, never run: the types are those of the README.
import http from 'node:http';
import http2 from 'node:http2';

import express from 'express';
import {Pool} from 'pg';
import {Failed, FinalFailure, InDoubt, Once, SlotClosed, keyOf, nodes, rawBody, type Claim, type FastifyPlugin} from '..';

const pool = new Pool();
const once = new Once(pool, {tenant: 7, logger: console});

export async function all(): Promise<void> {
  const result = await once.run('orders', 'cart-7', {cart: 7}, async (tx, {emit, emitBytes}) => {
    const {rows} = await tx.query('INSERT INTO orders (cart) VALUES ($1) RETURNING id', [7]);
    await emit('order.placed', {order: rows[0].id}, {aggregateType: 'order', aggregateId: '7'});
    await emitBytes('order.encoded', new Uint8Array(1), 'application/avro', {aggregateId: 7n});
    // @ts-expect-error a string would be encoded by guess
    await emitBytes('order.encoded', 'text', 'text/plain').catch(() => {});
    // @ts-expect-error an event of bytes cannot be delayed
    await once.emitBytes(tx, 'order.encoded', Buffer.alloc(1), 'application/avro', {notBefore: new Date()}).catch(() => {});
    if (rows.length === 0) throw new Failed('no_stock', 'no stock', {status: 409});
    return {status: 201, body: {order: rows[0].id}};
  }, {isolation: 'serializable', waitMs: 100});
  const body: string | undefined = result.body?.toString();
  const claim = await once.claim('charges', 'order-7', body ?? '');
  if (!claim.replayed) await (claim satisfies Claim).complete({status: 200});
  const charge = once.effect({scope: 'charges', key: (order: number) => `order-${order}`}, async (order: number, {signal}) => ({order, aborted: signal.aborted}));
  const charged: {order: number} = await charge(7);
  console.log(charged, new FinalFailure().answer.status, new InDoubt().answer?.errorCode, once.answerOf(new Error())?.headers[0]);
  const ofCustomer = once.effect({scope: 'charges', tenant: (customer: bigint) => customer, key: (_customer: bigint, order: number) => order}, (_customer, order, {tenant}) => `${tenant}/${order}`);
  console.log((await ofCustomer(7n, 8)).length, await once.consume('stock', 7, 'body', (tx) => once.emit(tx, 'order.placed', {}, {key: null, scope: null, aggregateId: 7n})));
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
app.post('/charges', (req, res) => {
  res.status(201).json(keyOf(req));
});
app.post('/mails', once.express({scope: 'mails', tenant: false, mode: 'lease', handlerMs: 1000, host: false}), (req, res) => {
  res.status(202).json({});
});
export const plugin: FastifyPlugin = once.fastify({tenant: (request) => request.user.id});
http.createServer(once.http({scope: 'orders', tenant: (req) => req.headers['x-user'] as string}, async (req, res) => {
  await req.pgonce.tx.query('SELECT 1');
  res.writeHead(200).end(req.rawBody);
}));
http2.createServer(once.http({scope: 'orders', tenant: false}, async (req, res) => {
  await req.pgonce.tx.query('SELECT 1');
  res.stream.respond({':status': 200});
}));
http.createServer(once.http({scope: 'mails', tenant: false, mode: 'lease'}, async (req, res) => {
  res.end(String(req.pgonce.signal.aborted));
}));
// @ts-expect-error in mode 'lease' there is no transaction
once.http({scope: 'mails', tenant: false, mode: 'lease'}, async (req) => req.pgonce.tx);
export const quiet = new Once(pool, {logger: {error: () => {}, debug: (line) => console.log(line)}});
app.use(once.problems());
export const overNodes = new Once(nodes([pool, new Pool()]));
export const routed = new Once(async (tenant, refused) => (tenant.length > (refused?.slot ?? 0) ? pool : new Pool()));
export const closed = (error: unknown): number | undefined => (error instanceof SlotClosed ? error.epoch : undefined);
// @ts-expect-error nodes takes pools
nodes('host=db1');
app.listen(3000);
