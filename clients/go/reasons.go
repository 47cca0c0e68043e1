// SPDX-License-Identifier: PostgreSQL

package once

// What is stored as error_code and error_message where it is the client that knows why: the same at
// every door.
type reason struct{ code, message string }

var (
	// spec: reasons
	reasonUnclear     = reason{"upstream_status", "the answer does not say whether the effect happened"}
	reasonRefused     = reason{"upstream_status", "the answer refuses the request"}
	reasonAgain       = reason{"upstream_status", "the answer asks for another attempt"}
	reasonNoAnswer    = reason{"no_answer", "the request was sent, and no whole answer came"}
	reasonNotKept     = reason{"answer_not_stored", "the answer cannot be stored"}
	reasonEnded       = reason{"transaction_ended", "the handler has ended the transaction that it was given: what it did may be committed"}
	reasonNotReported = reason{"not_reported", "the attempt ended without a report"}
	reasonNotDone     = reason{"not_done", ""}
	reasonCommitLost  = reason{"commit_lost", "the connection was lost before COMMIT took effect"}
	// end of spec
)
