// SPDX-License-Identifier: PostgreSQL
// Puts our plugin into each Fastify as it is made, before its first route.
'use strict';

const {giveKey, onLoad, once, options} = require('../node/injected');

/** Without a hook of its own: tests count them. */
const givesKey = (hook) => (request, ...more) => {
  giveKey(request.raw);
  return hook(request, ...more);
};

onLoad('/fastify.js', (fastify) => {
  if (typeof fastify.errorCodes !== 'object') return fastify;
  const protectedFastify = function protectedFastify(...args) {
    const app = fastify(...args);
    once.fastify(options)({addHook: (name, hook) => app.addHook(name, name === 'preParsing' ? givesKey(hook) : hook)}, {}, () => {});
    return app;
  };
  return Object.assign(protectedFastify, fastify, {fastify: protectedFastify, default: protectedFastify});
});
