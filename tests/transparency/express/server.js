// SPDX-License-Identifier: PostgreSQL
// The handlers of cases.json in Express, with the neighbours that its documentation names.
'use strict';

const crypto = require('crypto');
const {createRequire} = require('module');
const {Readable} = require('stream');

const from = createRequire(require.resolve('../node/common.js'));
const {after, effect, elsewhere, files, inUse, lateTx, lines, nested, on, once, options, order, pieces, pool, sha256, text, turn, txOf} = from('./common.js');
const compression = from('compression');
const cors = from('cors');
const {csrfSync} = from('csrf-sync');
const express = from('express');
const multer = from('multer');
const session = from('express-session');

const app = express();
app.get('/-/pool', (req, res) => res.json(inUse()));

// Outside of pgonce.
app.use('/compressed', compression());
app.use('/cors', cors({
  origin: 'https://shop.example', credentials: true, allowedHeaders: ['Idempotency-Key', 'Content-Type'], methods: ['GET', 'POST'], exposedHeaders: ['Idempotency-Replayed'],
}));
app.use('/outer', (req, res, next) => {
  res.set({'X-Outer': 'one', Link: '</outer>; rel=help', 'Content-Language': 'de'});
  next();
});
app.use('/auth', (req, res, next) => {
  if (req.get('Authorization') === 'Basic dTpw') next();
  else res.status(401).set('WWW-Authenticate', 'Basic realm="x"').send('Unauthorized');
});
app.use(['/session', '/csrf'], session({secret: 'of a test', resave: false, saveUninitialized: true}));
const {csrfSynchronisedProtection, generateToken} = csrfSync();
app.use('/csrf', csrfSynchronisedProtection);

app.use('/read-outside', express.urlencoded({extended: true}));

if (on) app.use(once.express(options));

// Inside.
app.use('/inner', (req, res, next) => {
  res.set('X-Inner', 'one');
  next();
});
app.use(express.json());
app.use(express.urlencoded({extended: true}));
app.use('/files', express.static(files));

const post = (name, ...handlers) => app.post(`/${name}`, ...handlers);
/** A handler that inserts its effect first. */
const does = (name, handler) => post(name, async (req, res, next) => {
  await effect(req, name);
  return handler(req, res, next);
});

does('json', (req, res) => res.status(201).json(order));
does('text', (req, res) => res.type('text/plain').send(text));
does('empty', (req, res) => res.status(200).end());
does('no-content', (req, res) => res.sendStatus(204));
does('reset-content', (req, res) => res.status(205).send());
does('large', (req, res) => {
  const all = Buffer.alloc(Number(req.query.bytes), '0123456789abcdef');
  res.type('application/octet-stream').set('Content-Length', String(all.length));
  Readable.from(Array.from({length: Math.ceil(all.length / 65536)}, (_, i) => all.subarray(i * 65536, (i + 1) * 65536)), {objectMode: false}).pipe(res);
});
does('stream-bytes', async (req, res) => {
  res.type('application/octet-stream');
  for (const piece of pieces) {
    res.write(piece);
    await turn();
  }
  res.end();
});
does('stream-text', (req, res) => Readable.from(lines).pipe(res.type('text/plain')));
does('file', (req, res) => res.sendFile('report.txt', {root: files}));
does('download', (req, res) => res.download('report.txt', 'rapport é.txt', {root: files}));
does('redirect', (req, res) => res.redirect(303, '/json'));
does('redirect-307', (req, res) => res.redirect(307, '/json'));
does('cookies', (req, res) => res.cookie('a', '1', {httpOnly: true}).cookie('b', '2', {sameSite: 'lax'}).type('text').send('cookies'));
does('repeated', (req, res) => {
  res.append('Link', '</a>; rel=next').append('Link', '</b>; rel=last').append('X-Part', 'one').append('X-Part', 'two');
  res.append('Vary', 'Origin').append('Vary', 'Accept').set('Cache-Control', 'no-store').type('text').send('repeated');
});
does('odd', (req, res) => res.set({'X-Odd': 'café', 'X-Empty': '', 'X-Long': 'x'.repeat(4000), 'X-Spaced': 'a  b\tc'}).type('text').send('odd'));
does('close', (req, res) => res.set('Connection', 'close').type('text').send('close'));

does('compressed', (req, res) => res.type('text').send('compress me, please. '.repeat(200)));
does('cors', (req, res) => res.status(201).json({cors: true}));
does('outer', (req, res) => res.status(201).json({outer: true}));
does('inner', (req, res) => res.status(201).json({inner: true}));
does('auth', (req, res) => res.type('text').send('auth'));
app.get('/session', (req, res) => {
  req.session.visits = 0;
  res.json({visits: 0});
});
does('session', (req, res) => {
  req.session.visits += 1;
  res.json({visits: req.session.visits});
});
app.get('/csrf', (req, res) => res.type('text').send(generateToken(req)));
does('csrf', (req, res) => res.status(201).json({csrf: true, amount: req.body.amount}));

does('read-outside', (req, res) => res.json({amount: req.body.amount}));
does('form', (req, res) => res.json(req.body));
post('upload', multer().any(), async (req, res) => {
  await effect(req, 'upload');
  res.json({fields: req.body, files: req.files.map((file) => [file.fieldname, file.originalname, file.mimetype, file.size, sha256(file.buffer)])});
});
does('body', (req, res) => res.json({got: req.body}));
does('echo', async (req, res) => {
  const read = [];
  for await (const piece of req) read.push(piece);
  res.set({'X-Type': req.get('Content-Type') ?? '', 'X-Encoding': req.get('Content-Encoding') ?? ''}).type('application/octet-stream').send(Buffer.concat(read));
});
does('digest', (req, res) => {
  const hash = crypto.createHash('sha256');
  let size = 0;
  req.on('data', (piece) => {
    size += piece.length;
    hash.update(piece);
  });
  req.on('end', () => res.json({size, sha256: hash.digest('hex')}));
});
does('request', (req, res) => res.json({
  method: req.method, target: req.originalUrl, host: req.get('Host'), accept: [req.get('Accept')], a: [].concat(req.query.a), client: Boolean(req.ip),
}));
does('unread', (req, res) => res.type('text').send('unread'));

does('throws', () => {
  throw new Error('thrown');
});
does('throws-late', async (req, res) => {
  res.type('text').write('first ');
  res.write('second ');
  await turn();
  throw new Error('thrown late');
});
does('status', (req, res, next) => {
  const code = Number(req.query.code);
  if (req.query.raise) next(Object.assign(new Error('sorry'), {status: code, expose: true}));
  else res.status(code).json({code});
});
does('retry-after', (req, res) => res.status(503).set('Retry-After', '7').type('text').send('later'));
does('deferred', async (req, res) => {
  await txOf(req).query('INSERT INTO taken (id) VALUES (1)');
  res.status(201).json({deferred: true});
});
does('deadlock', async (req, res) => {
  await txOf(req).query('SELECT deadlock()');
  res.status(201).type('text').send('deadlock');
});
does('swallowed', async (req, res) => {
  await txOf(req).query('SELECT 1/0').catch(() => {});
  res.status(201).type('text').send('swallowed');
});
does('commit', async (req, res) => {
  await txOf(req).query('COMMIT');
  res.status(201).type('text').send('commit');
});
post('begin-commit', async (req, res) => {
  const client = on ? txOf(req) : await pool.connect();
  await client.query('BEGIN');
  await client.query("INSERT INTO effect (name) VALUES ('begin-commit')");
  await client.query('COMMIT');
  if (!on) client.release();
  res.status(201).type('text').send('begin-commit');
});
post('nested', async (req, res) => {
  await nested(req);
  res.status(201).json({nested: true});
});
post('role', async (req, res) => {
  if (on) await txOf(req).query('SET LOCAL ROLE reader');
  await effect(req, 'role');
  res.status(201).type('text').send('role');
});
does('background', (req, res) => {
  after(() => elsewhere('background-task'), res);
  res.status(202).type('text').send('background');
});
does('late-tx', (req, res) => {
  after(() => lateTx(req), res);
  res.status(202).type('text').send('late-tx');
});
does('second', async (req, res) => {
  await pool.query('SELECT 1');
  res.status(201).json({second: 1});
});

does('two-answers', (req, res) => {
  res.status(201).type('text').send('first');
  res.status(202).type('text').send('second');
});
does('no-answer', () => {});
does('destroyed', (req, res) => res.type('text').write('half ', () => res.destroy()));
does('short', (req, res) => res.type('text').set('Content-Length', '10').end('short'));
does('long', (req, res) => res.type('text').set('Content-Length', '4').end('too long'));
does('invalid-status', (req, res) => res.status(99).type('text').send('odd'));
does('bad-header', (req, res) => res.set('X-Bad', 'a\nb').type('text').send('odd'));
does('early-hints', (req, res) => {
  res.writeEarlyHints({link: '</style.css>; rel=preload'});
  res.type('text').send('hints');
});
does('trailers', (req, res) => {
  res.type('text').set('Trailer', 'X-Checksum').write('with trailers');
  res.addTrailers({'X-Checksum': '42'});
  res.end();
});
does('events', async (req, res) => {
  res.type('text/event-stream').write('data: one\n\n');
  await pool.query('SELECT gate()');
  res.end('data: two\n\n');
});
does('gate', async (req, res) => {
  res.type('text/plain').write('before ');
  await txOf(req).query('SELECT gate()');
  if (!res.destroyed) res.write('after');
  res.end();
});

const sub = express();
sub.post('/json', async (req, res) => {
  await effect(req, 'sub/json');
  res.status(201).json(order);
});
app.use('/sub', sub);

app.get('/cacheable', (req, res) => res.set({ETag: '"v1"', 'Last-Modified': 'Sat, 01 Jan 2022 00:00:00 GMT'}).type('text').send('cacheable'));

app.use((error, req, res, next) => {
  if (res.headersSent || !error.expose) next(error);
  else res.status(error.status).type('text').send(error.message);
});

app.listen(process.env.PORT, '127.0.0.1');
