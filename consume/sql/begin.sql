-- SPDX-License-Identifier: PostgreSQL
BEGIN
