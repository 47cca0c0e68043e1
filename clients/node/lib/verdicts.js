// SPDX-License-Identifier: PostgreSQL
// What a verdict of the contract means: whether the work may run (then), what a span and a count call it (told), and with which error it is thrown.
'use strict';

// spec: lost-claim
// The verdict of a claim whose reply was lost, if a look shows that this caller holds it. first: the intent has had one attempt, so no work began
// before; a released attempt is not counted. without_takeover: the claim takes over from no silent attempt, so the earlier ones had no effect.
// otherwise: it may have taken over from one.
const LOST_FIRST = 'new_claim';
const LOST_WITHOUT_TAKEOVER = 'retryable_failure';
const LOST_OTHERWISE = 'processing_stale';
// end of spec

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

/** attempts: of the intent, as a look shows them. takeover: the option of the claim. */
const verdictOfLost = (attempts, takeover) => (attempts === 1 ? LOST_FIRST : takeover === false ? LOST_WITHOUT_TAKEOVER : LOST_OTHERWISE);

/** The verdict of an error's code; undefined: the error is no verdict. */
const verdictOf = (code) => BY_CODE[code];

module.exports = {VERDICTS, mayRun, verdictOf, verdictOfLost};
