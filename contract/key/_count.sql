-- SPDX-License-Identifier: PostgreSQL
-- once._count(verdict, times): counts what attempts were answered, in the words of a claim's
-- verdict or by the name of a counter (once.counts); nothing for a verdict without one, or in a
-- transaction that may not write.
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
