// SPDX-License-Identifier: PostgreSQL
// A response of node:http or http2 that a handler writes as usual, and of which nothing is sent before its guard has stored it. Then it is written again, call by call, to
// what was there before: so the first answer is the one that the handler would have given without us. That the client leaves is hidden from the handler until then.
'use strict';

const {STATUS_CODES, validateHeaderName, validateHeaderValue} = require('http');

const {headersOf, pairsOf, reset, send} = require('./answer');
const reasons = require('./reasons');

const HELD_MAX = 64 << 20; // the most that the contract stores of an answer
const BUFFER_MAX = 16384; // what write takes before it asks for patience, as node:http's
const EVENTS = /^\s*text\/event-stream/i;
const NO_ROOM = `an answer of more than ${HELD_MAX} bytes cannot be held until it is stored`;
const SHORT = "the answer's body is not as long as its Content-Length says";
const [HELD, OPEN, SILENT] = ['held', 'open', 'silent'];
const HIDDEN = new Set(['close', 'end', 'error']);
const LISTEN = new Set(['on', 'once', 'addListener', 'prependListener', 'prependOnceListener']);

const fault = (Class, code, message) => Object.assign(new Class(message), {code});

/** Overrides properties of an object; returns a function that removes them, except one that other code has overridden since. */
function cover(object, properties) {
  const before = Object.keys(properties).map((name) => [name, Object.getOwnPropertyDescriptor(object, name)]);
  for (const [name, property] of Object.entries(properties)) Object.defineProperty(object, name, {configurable: true, ...property});
  return () => {
    for (const [name, was] of before) {
      const {get, value} = Object.getOwnPropertyDescriptor(object, name) ?? {};
      if (get !== properties[name].get || value !== properties[name].value) continue;
      if (was) Object.defineProperty(object, name, was);
      else delete object[name];
    }
  };
}

/** What goes out: text stays text, of which node writes headers otherwise than of bytes. */
const asGiven = (piece, encoding, bytes) => (typeof piece === 'string' ? [piece, encoding] : [bytes]);

function bytesOf(piece, encoding) {
  if (typeof piece === 'string') return Buffer.from(piece, typeof encoding === 'string' ? encoding : 'utf8');
  if (piece instanceof Uint8Array) return Buffer.from(piece); // a copy: the handler may use it again
  if (piece === null) throw fault(TypeError, 'ERR_STREAM_NULL_VALUES', 'May not write null values to stream');
  throw fault(TypeError, 'ERR_INVALID_ARG_TYPE', `The "chunk" argument must be of type string or an instance of Buffer or Uint8Array. Received ${typeof piece}`);
}

/** [piece, encoding, callback] of the arguments of write and end. */
function argumentsOf(args) {
  const at = args.findIndex((each) => typeof each === 'function');
  const [piece, encoding] = at < 0 ? args : args.slice(0, at);
  return [piece, encoding, args[at]];
}

/** What writeHead is given as headers, as [name, value]. */
function givenHeaders(headers) {
  if (!headers) return [];
  if (!Array.isArray(headers)) return Object.entries(headers);
  const pairs = Array.isArray(headers[0]) ? headers : headers.flatMap((each, i) => (i % 2 === 0 ? [[each, headers[i + 1]]] : []));
  const named = new Map();
  for (const [name, value] of pairs) named.set(name.toLowerCase(), [name, named.has(name.toLowerCase()) ? [named.get(name.toLowerCase())[1], value].flat() : value]);
  return [...named.values()];
}

function checkHead(status, message) {
  if (!(status >= 100 && status <= 999)) throw fault(RangeError, 'ERR_HTTP_INVALID_STATUS_CODE', `Invalid status code: ${status}`);
  if (/[^\t\x20-\x7e\x80-\xff]/.test(message ?? '')) throw fault(TypeError, 'ERR_INVALID_CHAR', 'Invalid character in statusMessage');
}

/**
 * guard: end(head, body) is the whole answer, stream(head) one without an end; both, and refuse(message), resolve to {} where it goes out as it is, to {answer} of ours
 * in its place, or to {error}, which failed(error) gets; {effect} is for a gateway in front. broken(): there will be no answer. expired is called with the same when its time is up.
 * outer: headers that an answer of pgonce gets, too.
 */
class Held {
  #req; #res; #guard; #outer; #failed; #theirs; #uncover; #state = HELD;
  #head; #explicit = false; #pieces = []; #given = []; #size = 0; #unread = 0; #ended = false; #last; #settling = false; #after; #expired = false;
  #left = false; #leave; #listeners = []; #socket; #keepConnection = () => {}; #sending = false;

  constructor(req, res, guard, {outer = headersOf(res), failed}) {
    this.#req = req;
    this.#res = res;
    this.#guard = guard;
    this.#outer = outer;
    this.#failed = failed;
    const {writeHead, write, end, flushHeaders, destroy} = res;
    this.#theirs = {writeHead, write, end, flushHeaders, destroy};
    Object.assign(res, {
      writeHead: (...args) => (this.#state === HELD ? this.#writeHead(...args) : writeHead.apply(res, args)),
      write: (...args) => (this.#state === OPEN && !this.#sending ? write.apply(res, args) : this.#write(...args)),
      end: (...args) => (this.#state === OPEN && !this.#sending ? end.apply(res, args) : this.#end(...args)),
      flushHeaders: () => (this.#state === HELD ? void (this.#head ?? this.#begin(true)) : flushHeaders.call(res)),
      destroy: (error) => {
        this.#break(() => destroy.call(res, error));
        return res;
      },
    });
    this.#uncover = req.stream ? this.#watch() : this.#hide();
    guard.expired = (told) => {
      this.#expired = true;
      this.#settle(told);
    };
  }

  /** HTTP/2: who leaves ends the attempt. */
  #watch() {
    const {stream} = this.#req;
    this.#leave = () => {
      this.#left = true;
      if (!this.#ended) this.#break();
    };
    stream.once('close', this.#leave);
    const uncover = cover(this.#res, {headersSent: {get: () => this.#head !== undefined}, finished: {get: () => this.#ended}, writableEnded: {get: () => this.#ended}});
    return () => {
      stream.off('close', this.#leave);
      uncover();
    };
  }

  /** HTTP/1: who leaves is not seen to. */
  #hide() {
    const [req, res] = [this.#req, this.#res];
    const {emit} = res;
    const {destroy} = req;
    const socket = req.socket;
    let {destroyed} = res;
    this.#leave = () => {
      this.#left = true;
    };
    socket.once('close', this.#leave);
    const standIn = {get: () => this.#standIn(socket), set: () => {}};
    // What Node sees of a response that is at its end for the handler alone: a server that closes ends connections whose response is finished.
    const unfinished = new Proxy(res, {get: (target, name) => (name === 'finished' ? false : Reflect.get(target, name))});
    const uncoverRequest = cover(req, {
      socket: standIn,
      destroy: {value: (error) => (this.#state === HELD && error?.code === 'ECONNRESET' ? req : destroy.call(req, error)), writable: true},
    });
    const uncoverResponse = cover(res, {
      ...(res.socket ? {socket: standIn} : {}),
      destroyed: {get: () => false, set: (value) => (destroyed = value)},
      closed: {value: false},
      emit: {value: (name, ...args) => (name === 'close' && this.#state === HELD ? false : emit.call(res, name, ...args)), writable: true},
    });
    this.#keepConnection = () => {
      if (socket._httpMessage === res) socket._httpMessage = unfinished;
    };
    return () => {
      socket.off('close', this.#leave);
      if (socket._httpMessage === unfinished) socket._httpMessage = res;
      if (this.#state !== SILENT) uncoverRequest();
      uncoverResponse();
      res.destroyed = destroyed;
      for (const [method, name, listener] of this.#listeners.splice(0)) {
        if (socket.destroyed && name === 'close') process.nextTick(listener);
        else socket[method](name, listener);
      }
    };
  }

  /** The connection as a handler sees it: it stays, and what a handler does to it is done. */
  #standIn(socket) {
    this.#socket ??= new Proxy(socket, {
      get: (target, name) => {
        const held = this.#state === HELD;
        if (held && name === 'destroyed') return false;
        if (held && (name === 'writable' || name === 'readable')) return true;
        if (name === 'destroy' || name === 'destroySoon' || name === 'resetAndDestroy') {
          return (...args) => {
            // It has its answer, and the next request of this connection is on its way.
            if (this.#state !== SILENT) this.#break(() => target[name](...args));
            return target;
          };
        }
        if (held && LISTEN.has(name)) return (event, listener) => (HIDDEN.has(event) ? (this.#listeners.push([name, event, listener]), target) : target[name](event, listener));
        if (held && (name === 'removeListener' || name === 'off')) {
          return (event, listener) => {
            const at = this.#listeners.findIndex(([, other, its]) => other === event && its === listener);
            if (at >= 0) this.#listeners.splice(at, 1);
            return at >= 0 ? target : target.removeListener(event, listener);
          };
        }
        const value = Reflect.get(target, name);
        return typeof value === 'function' ? value.bind(target) : value;
      },
      set: (target, name, value) => Reflect.set(target, name, value),
    });
    return this.#socket;
  }

  #writeHead(status, ...rest) {
    if (this.#head) throw fault(Error, 'ERR_HTTP_HEADERS_SENT', 'Cannot write headers after they are sent to the client');
    const message = typeof rest[0] === 'string' ? rest.shift() : undefined;
    const headers = givenHeaders(rest.find((each) => typeof each === 'object' && each !== null)).filter(([, value]) => value !== undefined);
    checkHead(status, message);
    this.#res.statusCode = status | 0;
    if (!this.#req.stream) this.#res.statusMessage = message ?? (this.#res.statusMessage || STATUS_CODES[status] || 'unknown');
    for (const [name, value] of headers) {
      validateHeaderName(name);
      validateHeaderValue(name, value);
    }
    for (const [name, value] of headers) this.#res.setHeader(name, value);
    this.#took(true);
    return this.#res;
  }

  /** The headers are the handler's by now: through whatever it has put over writeHead (on-headers). explicit: they go out before the body is known. */
  #begin(explicit) {
    this.#res.writeHead(this.#res.statusCode);
    this.#explicit = explicit;
  }

  #took(explicit) {
    const res = this.#res;
    const effect = [res.getHeader('once-effect') ?? []].flat();
    res.removeHeader('once-effect');
    this.#explicit = explicit;
    this.#head = {status: res.statusCode, message: res.statusMessage, pairs: pairsOf(headersOf(res)), effect};
    if (!this.#req.stream) res._header = `HTTP/1.1 ${res.statusCode}\r\n\r\n`; // as after sending: no header can be set any more
    if (EVENTS.test(res.getHeader('content-type') ?? '')) this.#settle(this.#guard.stream(this.#head));
  }

  #write(...args) {
    const [piece, encoding, callback] = argumentsOf(args);
    const bytes = bytesOf(piece, encoding);
    if (this.#state === SILENT || this.#ended) {
      if (callback) process.nextTick(callback, fault(Error, 'ERR_STREAM_WRITE_AFTER_END', 'write after end'));
      return false;
    }
    if (!this.#head) this.#begin(false);
    this.#size += bytes.length;
    if (this.#size > HELD_MAX) this.#settle(this.#guard.refuse(NO_ROOM));
    else this.#take(piece, encoding, bytes);
    if (callback) process.nextTick(callback);
    if (this.#unread >= BUFFER_MAX) return false;
    this.#unread += bytes.length;
    if (this.#unread < BUFFER_MAX) return true;
    setImmediate(() => {
      this.#unread = 0;
      this.#res.emit('drain');
    });
    return false;
  }

  #take(piece, encoding, bytes) {
    this.#pieces.push(bytes);
    this.#given.push(asGiven(piece, encoding, bytes));
  }

  #end(...args) {
    const [piece, encoding, callback] = argumentsOf(args);
    const last = piece === undefined || piece === null ? undefined : bytesOf(piece, encoding);
    if (callback && !this.#res.writableFinished) this.#res.once('finish', callback);
    if (this.#state === SILENT || this.#ended) return this.#res;
    if (!this.#head) this.#begin(false);
    if (last) this.#pieces.push(last);
    this.#last = last ? asGiven(piece, encoding, last) : [];
    this.#ended = true;
    if (!this.#req.stream) {
      this.#res.finished = true;
      this.#keepConnection();
    }
    if (!this.#settling) this.#settle(this.#whole());
    return this.#res;
  }

  #whole() {
    const {status, pairs} = this.#head;
    const bodiless = status === 204 || status === 304 || this.#req.method === 'HEAD';
    const body = bodiless ? Buffer.alloc(0) : Buffer.concat(this.#pieces);
    const declared = pairs.find(([name]) => name.toLowerCase() === 'content-length')?.[1];
    if (!bodiless && declared !== undefined && Number(declared) !== body.length) return this.#guard.refuse(SHORT, reasons.NO_ANSWER);
    return this.#guard.end(this.#head, body);
  }

  #settle(told) {
    if (this.#state !== HELD || this.#settling) return;
    this.#settling = true;
    told.then(({answer, error, effect}) => {
      if (this.#state !== HELD) return;
      if (answer) this.#replace(answer);
      else if (error) this.#fail(error);
      else this.#release(effect);
    }).catch((error) => {
      this.#guard.log(error);
      this.#theirs.destroy.call(this.#res);
    });
  }

  /** There will be no answer. An answer that exists already is sent first; output of a handler after its deadline is dropped. */
  #break(destroy = () => {}) {
    if (this.#state === HELD && this.#settling) {
      if (!this.#expired) this.#after = destroy;
      return;
    }
    if (this.#state === HELD) {
      this.#guard.broken();
      this.#uncoverAs(OPEN);
    }
    destroy();
  }

  #uncoverAs(state) {
    this.#state = state;
    this.#uncover();
    if (!this.#req.stream) Object.assign(this.#res, {_header: null, finished: false});
  }

  /** Repeats the handler's calls as they were made. Later output is sent at once. effect: the effect that a gateway in front is told. */
  #release(effect) {
    const res = this.#res;
    const {writeHead, write, end, flushHeaders} = this.#theirs;
    this.#uncoverAs(OPEN);
    if (this.#left) return this.#close();
    const {status, message} = this.#head;
    res.statusCode = status;
    if (effect) res.setHeader('Once-Effect', effect);
    if (this.#explicit) writeHead.call(res, status, ...(message ? [message] : []));
    const given = this.#given;
    this.#forget();
    if (this.#req.stream && this.#ended) return this.#send(given);
    if (given.length > 0) {
      res.cork();
      for (const piece of given) write.call(res, ...piece);
      process.nextTick(() => res.uncork());
    } else if (!this.#ended) {
      flushHeaders.call(res);
    }
    if (this.#ended) end.call(res, ...this.#last);
    this.#after?.();
  }

  /** HTTP/2: as the client takes it. A session whose streams wait with more than 10 MB refuses the others. */
  #send(given) {
    const {write, end} = this.#theirs;
    this.#sending = true;
    while (given.length > 0) {
      if (!write.call(this.#res, ...given.shift())) return void this.#res.once('drain', () => this.#send(given));
    }
    this.#sending = false;
    end.call(this.#res, ...this.#last);
    this.#after?.();
  }

  /** An answer of pgonce; later output of the handler is dropped. */
  #replace(answer) {
    this.#uncoverAs(SILENT);
    this.#forget();
    if (this.#left) return this.#close();
    this.#state = OPEN;
    Object.assign(this.#res, this.#theirs);
    send(this.#res, answer, this.#outer);
    this.#state = SILENT;
    this.#after?.();
    Object.assign(this.#res, {write: (...args) => this.#write(...args), end: (...args) => this.#end(...args)});
  }

  #fail(error) {
    this.#uncoverAs(OPEN);
    if (this.#left) return this.#close();
    Object.assign(this.#res, this.#theirs);
    reset(this.#res, this.#outer);
    this.#res.statusCode = 200;
    this.#failed(error);
  }

  #forget() {
    this.#pieces = [];
    this.#given = [];
  }

  /** The client has left meanwhile, and now the handler may know. */
  #close() {
    if (this.#req.stream) return;
    this.#res.destroyed = true;
    this.#res.emit('close');
  }
}

module.exports = {Held};
