-- SPDX-License-Identifier: PostgreSQL
-- once._counted(): what is counted, of attempts and (inbox) of messages.
CREATE FUNCTION once._counted() RETURNS TABLE (verdict text, inbox boolean) LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    VALUES ('new', false), ('replay', false), ('mismatch', false), ('active', false), ('stale', false), ('retryable', false),
           ('final', false), ('in_doubt', false), ('expired', false),
           ('process', true), ('duplicate', true), ('message_mismatch', true)
$$;
