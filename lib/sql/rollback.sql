-- SPDX-License-Identifier: PostgreSQL
-- Ends the transaction of an execution that goes no further.
ROLLBACK
