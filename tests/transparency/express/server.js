// SPDX-License-Identifier: PostgreSQL
// The handlers of cases.json in Express, with the neighbours that its documentation names.
'use strict';

const {createRequire} = require('module');
const {Readable} = require('stream');

const from = createRequire(require.resolve('../node/common.js'));
const {effect, files, inUse, lines, on, once, options, order, pieces, text, txOf} = from('./common.js');
const cors = from('cors');
const express = from('express');

const app = express();

app.get('/-/pool', (req, res) => res.json(inUse()));
app.use('/cors', cors({origin: 'https://shop.example', credentials: true, allowedHeaders: ['Idempotency-Key', 'Content-Type'], methods: ['GET', 'POST'], exposedHeaders: ['Idempotency-Replayed']}));
if (on) app.use(once.express(options));
app.use(express.json());
app.use(express.urlencoded({extended: true}));

/** A handler that inserts its effect first. */
const post = (name, handler) => app.post(`/${name}`, async (req, res, next) => {
  await effect(req, name);
  return handler(req, res, next);
});

post('json', (req, res) => res.status(201).json(order));
post('text', (req, res) => res.type('text/plain').send(text));
post('empty', (req, res) => res.status(200).end());
post('no-content', (req, res) => res.sendStatus(204));
post('stream-bytes', async (req, res) => {
  res.type('application/octet-stream');
  for (const piece of pieces) {
    res.write(piece);
    await new Promise(setImmediate);
  }
  res.end();
});
post('stream-text', (req, res) => Readable.from(lines).pipe(res.type('text/plain')));
post('file', (req, res) => res.sendFile('report.txt', {root: files}));
post('redirect', (req, res) => res.redirect(303, '/json'));
post('cookies', (req, res) => res.cookie('a', '1', {httpOnly: true}).cookie('b', '2', {sameSite: 'lax'}).type('text').send('cookies'));
post('repeated', (req, res) => {
  res.append('Link', '</a>; rel=next').append('Link', '</b>; rel=last').append('X-Part', 'one').append('X-Part', 'two');
  res.append('Vary', 'Origin').append('Vary', 'Accept').set('Cache-Control', 'no-store').type('text').send('repeated');
});
post('cors', (req, res) => res.status(201).json({cors: true}));
post('form', (req, res) => res.json(req.body));
post('body', (req, res) => res.json({got: req.body}));
post('throws', () => {
  throw new Error('thrown');
});
post('status', (req, res) => res.status(Number(req.query.code)).json({code: Number(req.query.code)}));
post('no-answer', () => {});
post('gate', async (req, res) => {
  res.type('text/plain').write('before ');
  await txOf(req).query('SELECT gate()');
  if (!res.destroyed) res.write('after');
  res.end();
});

app.listen(process.env.PORT, '127.0.0.1');
