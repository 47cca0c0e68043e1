-- SPDX-License-Identifier: PostgreSQL
-- Also printed, with literals in place of the parameters, by pgonce init --print.
INSERT INTO once.migration (version, name, checksum, pgonce) VALUES ($1, $2, $3, $4);
