-- SPDX-License-Identifier: PostgreSQL
CREATE EXTENSION pgonce_native
