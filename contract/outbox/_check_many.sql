-- SPDX-License-Identifier: PostgreSQL
-- once._check_many(reason, state, dry_run, take, after, is_place): raises 22023 for what is wrong with a call that decides about many
-- parked events or messages. is_place: `after` is one that a call before gave.
CREATE FUNCTION once._check_many(reason text, state text, dry_run boolean, take integer, after text, is_place boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF state NOT IN ('waiting', 'retrying', 'dead') OR (take > 0) IS NOT TRUE OR (after IS NOT NULL AND is_place IS NOT TRUE)
       OR dry_run IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('pgonce: state=%s, take=%s, dry_run=%s or after=%s is none',
            quote_nullable(left(state, 80)), coalesce(take::text, 'NULL'), coalesce(dry_run::text, 'NULL'),
            quote_nullable(left(after, 80))),
            HINT = 'state is one of waiting, retrying, dead; NULL for all. after is what the call before gave as next.';
    END IF;
    IF NOT dry_run THEN
        PERFORM once._reason(reason);
    END IF;
END $$;
