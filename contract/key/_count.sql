-- SPDX-License-Identifier: PostgreSQL
-- once._count(verdict, times): counts the answers that attempts got, by the verdict of a claim or the name of a counter (once.counts).
-- Does nothing for a verdict without a counter, and in a read-only transaction.
CREATE FUNCTION once._count(verdict text, times bigint DEFAULT 1) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    counter regclass := to_regclass('once.counted_' || CASE verdict WHEN 'new_claim' THEN 'new' WHEN 'replay_success' THEN 'replay'
        WHEN 'processing_active' THEN 'active' WHEN 'processing_stale' THEN 'stale' WHEN 'retryable_failure' THEN 'retryable'
        WHEN 'final_failure' THEN 'final' WHEN 'abandoned' THEN 'final' ELSE verdict END);
    counted bigint;
BEGIN
    IF counter IS NOT NULL AND current_setting('transaction_read_only') = 'off' THEN
        FOR n IN 1 .. times LOOP
            counted := nextval(counter);        -- an assignment starts no query
        END LOOP;
    END IF;
END $$;
