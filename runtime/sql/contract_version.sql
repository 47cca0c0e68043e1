-- SPDX-License-Identifier: PostgreSQL
-- Which contract is it?
SELECT once.contract_version()
