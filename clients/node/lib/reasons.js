// SPDX-License-Identifier: PostgreSQL
// What is stored as error_code and error_message where it is the client that knows why: the same at every door.
'use strict';

module.exports = {
  // spec: reasons
  UNCLEAR: {code: 'upstream_status', message: 'the answer does not say whether the effect happened'},
  REFUSED: {code: 'upstream_status', message: 'the answer refuses the request'},
  AGAIN: {code: 'upstream_status', message: 'the answer asks for another attempt'},
  NO_ANSWER: {code: 'no_answer', message: 'the request was sent, and no whole answer came'},
  NOT_KEPT: {code: 'answer_not_stored', message: 'the answer cannot be stored'},
  ENDED: {code: 'transaction_ended', message: 'the handler has ended the transaction that it was given: what it did may be committed'},
  NOT_REPORTED: {code: 'not_reported', message: 'the attempt ended without a report'},
  NOT_DONE: {code: 'not_done', message: null},
  COMMIT_LOST: {code: 'commit_lost', message: 'the connection was lost before COMMIT took effect'},
  // end of spec
};
