// SPDX-License-Identifier: PostgreSQL
// The guard of guard.js in Express, Fastify and plain http: reads the body as it came, and holds the answer back until it is stored.
'use strict';

const {Readable} = require('stream');

const errors = require('./errors');
const {HELD_MAX, checked, open, wanted} = require('./guard');

const EVENTS = /^\s*text\/event-stream/i;
const NO_EVENTS = 'an answer of type text/event-stream has no end that could be stored: answer it on a route without the middleware';
const NO_ROOM = `an answer of more than ${HELD_MAX} bytes cannot be held until it is stored`;

/** The bytes of the body; null: more than max. What follows is read and dropped, so that the answer arrives. */
function read(stream, max) {
  return new Promise((resolve, reject) => {
    const pieces = [];
    let size = 0;
    stream.on('data', (piece) => {
      size += piece.length;
      if (size <= max) pieces.push(piece);
    });
    stream.on('end', () => resolve(size <= max ? Buffer.concat(pieces) : null));
    stream.on('error', reject);
    stream.on('close', () => {
      if (!stream.readableEnded) reject(new Error('pgonce: the request broke off'));
    });
  });
}

async function bodyOf(req, max) {
  if (Buffer.isBuffer(req.rawBody)) return req.rawBody.length <= max ? req.rawBody : null;
  if (req.readableEnded || req._body) {
    if (!(Number(req.headers['content-length']) > 0) && req.headers['transfer-encoding'] === undefined) return Buffer.alloc(0);
    throw new Error('pgonce: the body was read before: put the middleware before the parser, or give the parser {verify: rawBody}');
  }
  return read(req, max);
}

/** What a parser would have made of it: the stream is at its end. */
function parse(req, body) {
  if (req._body) return;
  req._body = true;
  const type = (req.headers['content-type'] ?? '').split(';')[0].trim().toLowerCase();
  if (body.length === 0) return;
  if (type === 'application/json' || type.endsWith('+json')) {
    try {
      req.body = JSON.parse(body);
    } catch (error) {
      throw Object.assign(error, {status: 400, statusCode: 400, type: 'entity.parse.failed'});
    }
  } else if (type === 'application/x-www-form-urlencoded') {
    req.body = Object.fromEntries(new URLSearchParams(body.toString()));
  } else {
    req.body = type.startsWith('text/') ? body.toString() : body;
  }
}

/** Pairs, those of one name together: as Node and Fastify set them. */
function byName(pairs) {
  const named = new Map();
  for (const [name, value] of pairs) {
    const of = named.get(name.toLowerCase()) ?? [name, []];
    of[1].push(value);
    named.set(name.toLowerCase(), of);
  }
  return [...named.values()].map(([name, values]) => [name, values.length === 1 ? values[0] : values]);
}

const pairsOf = (headers) => Object.entries(headers).flatMap(([name, value]) => (Array.isArray(value) ? value.map((each) => [name, String(each)]) : [[name, String(value)]]));

function send(res, {status, headers, body}, without = res.getHeaderNames()) {
  for (const name of without) res.removeHeader(name);
  res.statusMessage = undefined;
  res.statusCode = status;
  for (const [name, value] of byName(headers.filter(([name]) => !/^(content-length|transfer-encoding)$/i.test(name)))) res.setHeader(name, value);
  const bodiless = status === 204 || status === 304;
  if (!bodiless) res.setHeader('Content-Length', body.length);
  res.end(bodiless ? undefined : body);
}

/** Nothing of the answer leaves before the guard has stored it. */
function hold(res, guard) {
  const {writeHead, write, end, flushHeaders} = res;
  const pieces = [];
  let size = 0;
  let over = false;
  const restore = () => Object.assign(res, {writeHead, write, end, flushHeaders});
  const settle = (answer) => {
    over = true;
    answer.then((told) => {
      restore();
      send(res, told);
      // What a handler still writes after a refusal goes nowhere.
      Object.assign(res, {write: () => false, end: () => res});
    });
  };
  const add = (piece, encoding) => {
    if (over || piece === undefined || piece === null || typeof piece === 'function') return;
    if (EVENTS.test(res.getHeader('content-type') ?? '')) return settle(guard.refuse(NO_EVENTS));
    const bytes = typeof piece === 'string' ? Buffer.from(piece, typeof encoding === 'string' ? encoding : 'utf8') : Buffer.from(piece);
    size += bytes.length;
    if (size > HELD_MAX) return settle(guard.refuse(NO_ROOM));
    pieces.push(bytes);
  };
  res.writeHead = (status, ...rest) => {
    res.statusCode = status;
    const headers = rest.find((each) => typeof each === 'object' && each !== null) ?? {};
    if (Array.isArray(headers)) {
      const pairs = Array.isArray(headers[0]) ? headers : headers.flatMap((each, i) => (i % 2 === 0 ? [[each, headers[i + 1]]] : []));
      for (const [name, value] of byName(pairs)) res.setHeader(name, value);
    } else {
      for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
    }
    return res;
  };
  res.flushHeaders = () => {
    if (!over && EVENTS.test(res.getHeader('content-type') ?? '')) settle(guard.refuse(NO_EVENTS));
  };
  res.write = (piece, encoding, callback) => {
    add(piece, encoding);
    const after = typeof encoding === 'function' ? encoding : callback;
    if (after) process.nextTick(after);
    return true;
  };
  res.end = (piece, encoding, callback) => {
    add(piece, encoding);
    const after = [piece, encoding, callback].find((each) => typeof each === 'function');
    if (after) res.once('finish', after);
    if (!over) {
      const headers = Object.fromEntries(res.getRawHeaderNames().map((name) => [name, res.getHeader(name)]));
      settle(guard.end(res.statusCode, pairsOf(headers), Buffer.concat(pieces)));
    }
    return res;
  };
}

/** The request's part of node:http: opens, and says whether the handler is to be called. */
async function enter(once, pool, options, req, res) {
  if (!wanted(options, req)) {
    req.pgonce = {tx: pool};
    return true;
  }
  const body = await bodyOf(req, options.bodyMax);
  const {guard, reply} = await open(pool, options, req, options.tenant ? await options.tenant(req) : '', body);
  if (reply) {
    send(res, reply);
    return false;
  }
  const {attempt} = guard;
  req.pgonce = {tx: attempt.tx, ...once.within(attempt)};
  hold(res, guard);
  req.rawBody = body;
  return true;
}

function express(once, pool, given, logger) {
  const options = checked(logger, given);
  return (req, res, next) => {
    enter(once, pool, options, req, res)
      .then((goesOn) => {
        if (!goesOn) return;
        if (req.rawBody) parse(req, req.rawBody);
        next();
      })
      .catch(next);
  };
}

function http(once, pool, given, handler, logger) {
  const options = checked(logger, given);
  return async (req, res) => {
    try {
      if (await enter(once, pool, options, req, res)) await handler(req, res);
    } catch (error) {
      logger.error(`pgonce: the handler threw: ${errors.lineOf(error)}`);
      res.statusCode = error?.statusCode ?? 500;
      res.end();
    }
  };
}

/** Hooks to be spread into a route's options. */
function fastify(once, pool, given, logger) {
  const options = checked(logger, given);
  const guards = new WeakMap();
  const preParsing = async (request, _reply, payload) => {
    const req = request.raw;
    if (!wanted(options, req)) return payload;
    // Held once and given on: what is hashed is what came.
    req.rawBody = await read(payload, options.bodyMax);
    const again = Readable.from(req.rawBody === null || req.rawBody.length === 0 ? [] : [req.rawBody], {objectMode: false});
    again.receivedEncodedLength = req.rawBody === null ? Number(req.headers['content-length'] ?? 0) : req.rawBody.length;
    return again;
  };
  const preHandler = async (request, reply) => {
    const req = request.raw;
    if (!wanted(options, req)) {
      request.pgonce = {tx: pool};
      return undefined;
    }
    const {guard, reply: told} = await open(pool, options, req, options.tenant ? await options.tenant(request) : '', req.rawBody ?? null);
    if (told) {
      reply.code(told.status);
      for (const [name, value] of byName(told.headers)) reply.header(name, value);
      return reply.send(told.body.length > 0 ? told.body : undefined);
    }
    guards.set(request, guard);
    request.pgonce = {tx: guard.attempt.tx, ...once.within(guard.attempt)};
    return undefined;
  };
  const onSend = async (request, reply, payload) => {
    const guard = guards.get(request);
    if (!guard || guard.ended) return payload;
    const events = EVENTS.test(reply.getHeader('content-type') ?? '');
    const body = events ? null : await whole(payload);
    const told = body === null ? await guard.refuse(events ? NO_EVENTS : NO_ROOM) : await guard.end(reply.statusCode, pairsOf(reply.getHeaders()), body);
    for (const name of Object.keys(reply.getHeaders())) reply.removeHeader(name);
    reply.code(told.status);
    for (const [name, value] of byName(told.headers.filter(([name]) => !/^(content-length|transfer-encoding)$/i.test(name)))) reply.header(name, value);
    return told.body.length > 0 ? told.body : '';
  };
  const onResponse = async (request) => {
    const guard = guards.get(request);
    // The answer went another way (reply.hijack): nothing is stored, so nothing may be done.
    if (guard && !guard.ended) await guard.refuse('the answer was sent past the middleware (reply.hijack)');
  };
  return {preParsing, preHandler, onSend, onResponse};
}

async function whole(payload) {
  if (payload === undefined || payload === null) return Buffer.alloc(0);
  if (typeof payload === 'string' || payload instanceof Uint8Array) return Buffer.from(payload);
  return read(payload instanceof Readable ? payload : Readable.fromWeb(payload), HELD_MAX);
}

module.exports = {express, fastify, http, send};
