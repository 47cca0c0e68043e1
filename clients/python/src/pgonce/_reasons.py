# SPDX-License-Identifier: PostgreSQL
"""What is stored as error_code and error_message where it is the client that knows why: the same at every door."""

# spec: reasons
UNCLEAR = ("upstream_status", "the answer does not say whether the effect happened")
REFUSED = ("upstream_status", "the answer refuses the request")
AGAIN = ("upstream_status", "the answer asks for another attempt")
NO_ANSWER = ("no_answer", "the request was sent, and no whole answer came")
NOT_KEPT = ("answer_not_stored", "the answer cannot be stored")
ENDED = ("transaction_ended", "the handler has ended the transaction that it was given: what it did may be committed")
NOT_REPORTED = ("not_reported", "the attempt ended without a report")
NOT_DONE = ("not_done", None)
COMMIT_LOST = ("commit_lost", "the connection was lost before COMMIT took effect")
# end of spec
