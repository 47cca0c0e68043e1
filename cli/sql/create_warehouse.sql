-- SPDX-License-Identifier: PostgreSQL
-- The second database of pgonce dev, to which the consumer brings the first one's events.
CREATE DATABASE warehouse
