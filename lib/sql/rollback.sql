-- SPDX-License-Identifier: PostgreSQL
-- Ends the transaction of an execution that stops here.
ROLLBACK
