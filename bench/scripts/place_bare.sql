-- SPDX-License-Identifier: PostgreSQL
-- The order transaction without an intent: the order and its event (once.emit).
SELECT orders.place_bare({request});
