// SPDX-License-Identifier: PostgreSQL
// The guard of a request as a plugin of Fastify. Each route of its context gets pgonce's hooks after its own, so that no option of a route can drop them.
'use strict';

const {headersOf, send} = require('./answer');
const {bodyOfPayload} = require('./body');
const {Held} = require('./held');
const {enter, handling, handlingOfNone, threw} = require('./middleware');
const {refusal} = require('./reply');
const {checked, wanted} = require('./request');

const LATE = 'pgonce: this route was registered before the plugin: write "await app.register(once.fastify(...))" before it';

/** What other hooks have set for every answer. */
const outerOf = (reply) => [...headersOf(reply.raw), ...Object.entries(reply.getHeaders())];

function answerWith(reply, answer) {
  const outer = outerOf(reply);
  reply.hijack();
  send(reply.raw, answer, outer);
}

/** The client has left, or has an answer already. */
function leave(reply) {
  if (reply.raw.writableEnded) return;
  reply.hijack();
  reply.raw.destroy();
}

/** given: the options of every route, some of which a route may say otherwise in config.pgonce; false there leaves it out, and so does a missing scope. */
function fastify(once, route, {scope, ...given}, logger) {
  const every = scope !== undefined && checked(logger, {scope, ...given});
  const OPTIONS = Symbol('pgonce'); // in the config of each route that has come by: false where it is left out
  const bodies = new WeakMap();
  const optionsOf = (request) => request.routeOptions.config[OPTIONS];

  const preHandler = async (request, reply) => {
    const options = optionsOf(request);
    const req = request.raw;
    if (!wanted(options, req)) {
      request.pgonce = handlingOfNone(route, options);
      return undefined;
    }
    const body = bodies.has(request) ? bodies.get(request) : Buffer.alloc(0);
    const {guard, reply: answer, left, passed} = await enter(once, route, options, req, reply.raw, body, request);
    if (passed) {
      request.pgonce = passed;
      return undefined;
    }
    if (left) return leave(reply);
    if (answer) return answerWith(reply, answer);
    const failed = (error) => void (reply.sent ? threw(reply.raw, error, logger) : reply.send(error)); // sent: hijacked
    new Held(req, reply.raw, guard, {outer: outerOf(reply), failed});
    request.pgonce = handling(once, guard);
    return undefined;
  };

  const plugin = (app, _options, done) => {
    app.addHook('onRoute', (route) => {
      const own = route.config?.pgonce;
      const options = own !== false && (scope ?? own?.scope) !== undefined && checked(logger, {scope, ...given, ...own});
      route.config = {...route.config, [OPTIONS]: options};
      if (options) route.preHandler = [route.preHandler ?? [], preHandler].flat();
    });
    app.addHook('preParsing', async (request, reply, payload) => {
      const options = optionsOf(request);
      if (options === undefined && every && !request.is404 && wanted(every, request.raw)) throw new Error(LATE);
      if (!options || !wanted(options, request.raw)) return payload;
      const {body, again} = await bodyOfPayload(request.raw, payload, options.bodyMax);
      bodies.set(request, body); // undefined: it broke off, which the parsers notice, or else the preHandler
      if (body === null) answerWith(reply, refusal(options, 'body-too-large'));
      return again;
    });
    done();
  };
  plugin[Symbol.for('skip-override')] = true;
  plugin[Symbol.for('fastify.display-name')] = 'pgonce';
  // Spread into a route's options, as hooks are, it would protect nothing.
  const message = 'pgonce: once.fastify(...) is a plugin: write "await app.register(once.fastify(...))" before the routes';
  return Object.defineProperty(plugin, 'preHandler', {enumerable: true, get: () => {
    throw new TypeError(message);
  }});
}

module.exports = {fastify};
