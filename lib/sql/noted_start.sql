-- SPDX-License-Identifier: PostgreSQL
-- Has this transaction started an intent? The note of start ends with the transaction.
SELECT current_setting('once.started', true) <> ''
