-- SPDX-License-Identifier: PostgreSQL
-- once._is_moving(): whether slots are being copied from or to this node (pgonce rehome), or a copy was left unfinished. Meanwhile nothing
-- is deleted or archived: only inserts and updates are replicated.
CREATE FUNCTION once._is_moving() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_publication AS p WHERE p.pubname = 'pgonce_rehome')
        OR EXISTS (SELECT FROM pg_subscription AS s
                    WHERE s.subname = 'pgonce_rehome'
                      AND s.subdbid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
$$;
