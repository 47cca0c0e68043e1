-- SPDX-License-Identifier: PostgreSQL
-- once._count(scope, verdict, times): counts what attempts of a scope were told, in the words of a claim's verdict or in those
-- of once._counted; nothing for a verdict that is not counted, or in a transaction that may not write.
CREATE FUNCTION once._count(scope text, verdict text, times bigint DEFAULT 1) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    told text := CASE verdict WHEN 'new_claim' THEN 'new' WHEN 'replay_success' THEN 'replay' WHEN 'processing_active' THEN 'active'
        WHEN 'processing_stale' THEN 'stale' WHEN 'retryable_failure' THEN 'retryable' WHEN 'final_failure' THEN 'final'
        WHEN 'abandoned' THEN 'final' WHEN 'future' THEN NULL WHEN 'missing' THEN NULL WHEN 'unknown' THEN NULL ELSE verdict END;
    counter regclass;
    ticked bigint;
BEGIN
    IF told IS NOT NULL AND current_setting('transaction_read_only') = 'off' THEN
        counter := once._counter(told, scope, to_regclass('once.counted_' || told));
        FOR n IN 1 .. times LOOP
            ticked := nextval(counter);     -- an assignment is evaluated without starting a query
        END LOOP;
    END IF;
END $$;
