-- SPDX-License-Identifier: PostgreSQL
-- once._is_first(state, status, body, result_type, result_id): whether once.finish_new may store this outcome itself: nothing is wrong with
-- it, apart from its headers (once._is_usual), and this transaction has started no intent (once._note_start). Inlined.
CREATE FUNCTION once._is_first(state text, status integer, body bytea, result_type text, result_id text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT state IN ('succeeded', 'failed_final', 'failed_retryable') AND once._is_usual(status, body, result_type, result_id)
       AND coalesce(current_setting('once.started', true), '') = ''
$$;
