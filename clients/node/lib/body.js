// SPDX-License-Identifier: PostgreSQL
// The bytes of a request's body, read for its fingerprint and put back: later readers find the stream unread.
'use strict';

const {Readable} = require('stream');

const READ_BEFORE = 'pgonce: the body was read before: put the middleware before the parser, or give the parser {verify: rawBody}';

const hasBody = (req) => (req.stream ? !req.stream.endAfterHeaders : req.headers['transfer-encoding'] !== undefined || Number(req.headers['content-length']) > 0);

/** The bytes up to the stream's end, which is not consumed; null: more than max, and the rest is dropped, so that the answer arrives. undefined: it broke off. */
function read(stream, max) {
  return new Promise((resolve) => {
    const pieces = [];
    let size = 0;
    const done = (body) => {
      stream.off('readable', take).off('close', brokenOff).off('error', brokenOff);
      resolve(body);
    };
    const brokenOff = () => done(undefined);
    const take = () => {
      for (let piece; stream.readableLength > 0 && (piece = stream.read()) !== null;) {
        size += piece.length;
        if (size <= max) pieces.push(piece);
        else pieces.length = 0;
      }
      if (!stream._readableState.ended) return void stream.read(0);
      const body = size <= max ? Buffer.concat(pieces) : null;
      done(body);
      // Before the end is told, which the next tick would do: a stream that has something is not at its end.
      if (body?.length > 0) stream.unshift(body);
    };
    if (stream.destroyed) return void resolve(undefined);
    if (stream._readableState.ended) return void take();
    stream.read(0); // now, not by the listener a tick later: where the body is empty, that would find its end and tell it before somebody listens
    stream.on('readable', take).on('close', brokenOff).on('error', brokenOff);
  });
}

/** Is it all that the client wanted to send? */
function isWhole(req, body) {
  const declared = req.headers['content-length'];
  return !req.aborted && !req.stream?.aborted && (body === null || declared === undefined || body.length === Number(declared));
}

/** As read. */
async function bodyOf(req, max) {
  if (Buffer.isBuffer(req.rawBody)) return req.rawBody.length <= max ? req.rawBody : null;
  if (!hasBody(req)) return Buffer.alloc(0);
  if (req.readableEnded || req.readableDidRead || req._body) throw new Error(READ_BEFORE);
  if (req.readableEncoding) throw new Error('pgonce: the request has a text encoding already: its bytes are needed');
  if (Number(req.headers['content-length']) > max) {
    req.resume();
    return null;
  }
  const body = await read(req, max);
  if (body === undefined || !isWhole(req, body)) return undefined;
  if (body !== null) req.rawBody ??= body;
  return body;
}

/** What the framework's parsers find of a body that broke off: its error, which was told before. */
function failing(error) {
  return new Readable({read() {
    this.destroy(error);
  }});
}

/** The same of what somebody else has made of the request's stream: {body, again}, with a stream to be read in its place. */
async function bodyOfPayload(req, payload, max) {
  let failure;
  const failed = (error) => {
    failure = error;
  };
  payload.once('error', failed);
  const body = await (payload === req ? bodyOf(req, max) : read(payload, max));
  payload.off('error', failed);
  if (failure || (body === undefined && payload.destroyed)) return {body: undefined, again: failing(failure ?? new Error('aborted'))};
  if (payload === req) return {body, again: payload};
  const again = Readable.from(body === undefined || body === null || body.length === 0 ? [] : [body], {objectMode: false});
  again.receivedEncodedLength = payload.receivedEncodedLength ?? body?.length ?? 0;
  return {body, again};
}

module.exports = {bodyOf, bodyOfPayload};
