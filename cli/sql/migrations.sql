-- SPDX-License-Identifier: PostgreSQL
SELECT m.version, m.name, m.checksum, m.pgonce FROM once.migration AS m ORDER BY m.version
