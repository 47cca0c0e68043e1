-- SPDX-License-Identifier: PostgreSQL
-- {count} pairs: the claims in one transaction, the completions in another.
SELECT count(*) FROM once.claim_many(plain.repeat('leased'::text, {count}), plain.keys(:a, :b, {count}),
    plain.repeat({fingerprint}::bytea, {count}), 'bench');
SELECT count(*) FROM once.complete_many(plain.repeat('leased'::text, {count}), plain.keys(:a, :b, {count}),
    plain.repeat(1, {count}), plain.repeat(201, {count}), response_body => plain.repeat({fingerprint}::bytea, {count}));
