-- SPDX-License-Identifier: PostgreSQL
SET LOCAL check_function_bodies = off;
