-- SPDX-License-Identifier: PostgreSQL
-- One pair: a claim and its completion, each a transaction.
SELECT once.claim('leased', {key}, {fingerprint}, 'bench');
SELECT once.complete('leased', {key}, 1, 201, response_body => {fingerprint}::bytea);
