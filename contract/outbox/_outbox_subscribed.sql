-- SPDX-License-Identifier: PostgreSQL
-- once._outbox_subscribed(): whether events come into this database by logical replication: then their xids are those of the
-- publisher, and no snapshot of ours says anything of them. A subscription that is disabled counts.
CREATE FUNCTION once._outbox_subscribed() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_subscription_rel AS s
                    WHERE s.srrelid = 'once.outbox'::regclass
                       OR s.srrelid IN (SELECT i.inhrelid FROM pg_inherits AS i WHERE i.inhparent = 'once.outbox'::regclass))
$$;
