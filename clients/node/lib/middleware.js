// SPDX-License-Identifier: PostgreSQL
// The guard of a request in Express and plain http: reads the body as it came, opens, and holds the answer back until it is stored.
'use strict';

const {send} = require('./answer');
const {bodyOf} = require('./body');
const errors = require('./errors');
const {open} = require('./guard');
const {openHandoff} = require('./handoff');
const {Held} = require('./held');
const {openLease} = require('./lease');
const {refusal} = require('./reply');
const {checked, named, wanted} = require('./request');

/** Has the client left, or got an answer of other code, such as a time limit outside? */
const isGone = (req, res) => res.writableEnded === true || (req.stream ? req.stream.destroyed : req.socket.destroyed === true || req.socket.writableEnded === true);

const ofIntent = ({scope, key, tenant, traceparent, fence}) => ({scope, key, tenant, traceparent, fence});

/** What is in req.pgonce, and the intent. */
function handling(once, {attempt, held, intent}) {
  return attempt ? {tx: attempt.tx, ...once.within(attempt)} : {...ofIntent(intent), traceparent: held.traceparent, signal: held.signal, fence: held.fence};
}

/** Without a key no tenant is known, so several nodes have no pool for it. */
const handlingOfNone = ({pool}, {mode}) => (mode === 'lease' || !pool ? {} : {tx: pool});

/**
 * {guard}; {reply} if the handler must not be called; {left} if the client has left; {passed}, the intent as the handler gets it, if a gateway
 * in front does all of it. of: the request as the framework has it.
 */
async function enter(once, route, options, req, res, body, of = req) {
  const gone = () => isGone(req, res);
  if (body === undefined || gone()) return {left: true};
  const {intent, slug, more} = named(options, req, options.tenant ? await options.tenant(of) : '', body);
  if (slug) return {reply: refusal(options, slug, {more})};
  if (intent.fence !== undefined && options.mode === 'lease') return {passed: ofIntent(intent)};
  const said = await (options.mode === 'lease' ? openLease : intent.fence !== undefined ? openHandoff : open)(route, options, intent, gone);
  if (!said.guard || !gone()) return said;
  await said.guard.unused();
  return {left: true};
}

/** Returns a function that calls a handler under its guard, with req.pgonce set; undefined if no handler is called. failed(error): the application's error at COMMIT. */
async function admit(once, route, options, req, res, failed) {
  const asItIs = (work) => work();
  if (!wanted(options, req)) {
    req.pgonce = handlingOfNone(route, options);
    return asItIs;
  }
  const {guard, reply, left, passed} = await enter(once, route, options, req, res, await bodyOf(req, options.bodyMax));
  if (left) return undefined;
  if (reply) return void send(res, reply);
  if (passed) {
    req.pgonce = passed;
    return asItIs;
  }
  new Held(req, res, guard, {failed});
  req.pgonce = handling(once, guard);
  return (work) => once.working(guard, work);
}

/** Calls next() under the guard, next(error), or answers itself. */
function express(once, route, given, logger) {
  const options = checked(logger, given);
  return async (req, res, next) => {
    let going;
    try {
      const admitted = await admit(once, route, options, req, res, next);
      if (!admitted) return;
      going = () => admitted(next);
    } catch (error) {
      going = () => next(error);
    }
    going();
  };
}

/** What the handler throws is a 500; behind a part of its answer it is the end of the connection. */
function threw(res, error, logger) {
  logger.error(`pgonce: the handler threw: ${errors.lineOf(error)}`);
  if (res.headersSent) return void res.destroy();
  const status = error?.statusCode ?? error?.status;
  res.statusCode = status >= 400 && status <= 599 ? status : 500;
  res.end();
}

function http(once, route, given, handler, logger) {
  const options = checked(logger, given);
  return async (req, res) => {
    try {
      const admitted = await admit(once, route, options, req, res, (error) => threw(res, error, logger));
      await admitted?.(() => handler(req, res));
    } catch (error) {
      threw(res, error, logger);
    }
  };
}

module.exports = {enter, express, handling, handlingOfNone, http, threw};
