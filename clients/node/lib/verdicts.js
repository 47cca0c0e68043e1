// SPDX-License-Identifier: PostgreSQL
// What a verdict of the contract means: whether the work may run (then), what a span and a count call it (told), and with which error it is thrown.
'use strict';

const VERDICTS = {
  // spec: verdicts
  proceed: {then: 'run', told: 'proceed'},
  new_claim: {then: 'run', told: 'proceed'},
  replay_success: {then: 'replay', told: 'replay'},
  processing_active: {then: 'wait', told: 'active', sqlstate: 'P4029'},
  processing_stale: {then: 'run', told: 'proceed'},
  retryable_failure: {then: 'run', told: 'proceed'},
  final_failure: {then: 'fail', told: 'final_failure', sqlstate: 'P4030'},
  in_doubt: {then: 'refuse', told: 'in_doubt', sqlstate: 'P4031'},
  expired: {then: 'refuse', told: 'expired', sqlstate: 'P4041'},
  mismatch: {then: 'refuse', told: 'mismatch', sqlstate: 'P4002'},
  // end of spec
};

const BY_CODE = Object.fromEntries(Object.entries(VERDICTS).filter(([, row]) => row.sqlstate).map(([verdict, row]) => [row.told, verdict]));

const mayRun = (verdict) => VERDICTS[verdict]?.then === 'run';

/** The verdict that an error's code is; undefined: of none. */
const verdictOf = (code) => BY_CODE[code];

module.exports = {VERDICTS, mayRun, verdictOf};
