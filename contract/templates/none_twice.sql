-- SPDX-License-Identifier: PostgreSQL
-- none_twice(names): leaves the block `short` if a name is twice in a batch. A tsvector finds that without a statement, but has at most 1
-- MB: 4,000 names of 255 bytes.
IF size <= 4000 THEN
    EXIT short WHEN length(array_to_tsvector({names})) <> size;
ELSE
    EXIT short WHEN (SELECT count(DISTINCT name COLLATE "C") FROM unnest({names}) AS name) <> size;
END IF;
