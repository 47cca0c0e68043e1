// SPDX-License-Identifier: PostgreSQL
// What has to be here before anything else of the package is read: one line says what to do, instead of a syntax error or a stack of requires.
'use strict';

if (Number(process.versions.node.split('.')[0]) < 18) throw new Error(`pgonce needs Node 18 or later, and this is ${process.version}`);
try {
  require.resolve('pg');
} catch (_) {
  throw new Error('pgonce needs the driver pg, which is not installed: run npm install pg');
}
