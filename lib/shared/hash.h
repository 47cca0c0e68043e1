/* SPDX-License-Identifier: PostgreSQL */
/*
 * hash.h: FNV-1a, 64 bits (Fowler, Noll, Vo; draft-eastlake-fnv), for tables and names. Only this
 * header: every part of the tree may use it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define HASH_START UINT64_C(14695981039346656037)

/* Continues from `hash`: HASH_START, or the result for the part before. */
static inline uint64_t hash_bytes(uint64_t hash, const void *data, size_t length)
{
	for (const unsigned char *at = data, *end = at + length; at < end; at++) {
		hash = (hash ^ *at) * UINT64_C(1099511628211);
	}
	return hash;
}
