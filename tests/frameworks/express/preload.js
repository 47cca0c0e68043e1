// SPDX-License-Identifier: PostgreSQL
// Puts our middleware before whatever an application of Express has: at the moment its router is made.
'use strict';

const {giveKey, onLoad, once, options} = require('../node/injected');

const guard = once.express(options);

/** Of an application in another one the outer one's has seen the request. */
function protect(req, res, next) {
  if (req.pgonce) return next();
  giveKey(req);
  return guard(req, res, next);
}

onLoad('/lib/application.js', (application) => {
  const {init} = application;
  application.init = function initProtected() {
    init.call(this);
    const {get} = Object.getOwnPropertyDescriptor(this, 'router');
    let router;
    Object.defineProperty(this, 'router', {
      configurable: true, enumerable: true,
      get() {
        if (!router) {
          router = get.call(this);
          router.use(protect);
        }
        return router;
      },
    });
  };
  return application;
});
