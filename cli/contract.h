/* SPDX-License-Identifier: PostgreSQL */
/* contract.h: the SQL contract as tools/contract.py embeds it, part by
 * part, in the order of installation. */
#pragma once

typedef enum contract_kind {
	CONTRACT_PREPARATION, /* settings of the transaction, before anything else in it */
	CONTRACT_SCHEMA,
	CONTRACT_RECORD,    /* the table once.migration */
	CONTRACT_UPGRADE,   /* before the first migration of a contract that is there already */
	CONTRACT_MIGRATION, /* runs once, and is recorded */
	CONTRACT_CODE,      /* functions and grants: replaced as a whole, recorded as version 0 */
	CONTRACT_DAYS       /* the first partitions */
} contract_kind;

typedef struct contract_part {
	contract_kind kind;
	int version;
	const char *name;
	const char *checksum; /* SHA-256, hex */
	const char *sql;
} contract_part;

extern const contract_part contract_parts[];
extern const int contract_part_count;
