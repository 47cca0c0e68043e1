-- SPDX-License-Identifier: PostgreSQL
-- once._outbox_subscribed(): whether events arrive in this database by logical replication: then their xids are the publisher's, and
-- snapshots of this database do not apply to them. A disabled subscription counts.
CREATE FUNCTION once._outbox_subscribed() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM pg_subscription_rel AS s
                    WHERE s.srrelid = 'once.outbox'::regclass
                       OR s.srrelid IN (SELECT i.inhrelid FROM pg_inherits AS i WHERE i.inhparent = 'once.outbox'::regclass))
$$;
