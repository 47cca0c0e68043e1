-- SPDX-License-Identifier: PostgreSQL
-- once.consumer_list(): the consumers, each part of each tenant: position, up to when all its messages were acknowledged, and when that
-- was reported (once.consumer_report). So the part lagged by reported_at - position then.
CREATE FUNCTION once.consumer_list() RETURNS TABLE (consumer text, tenant text, part text, "position" timestamptz, reported_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.consumer, c.tenant, c.part, c."position", c.reported_at FROM once.consumer_position AS c ORDER BY 1, 2, 3
$$;
