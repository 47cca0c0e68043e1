-- SPDX-License-Identifier: PostgreSQL
SELECT once.contract_version()
