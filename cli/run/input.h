/* SPDX-License-Identifier: PostgreSQL */
/* input.h: what the fingerprint of pgonce run is taken of. */
#pragma once

#include "bytes.h"
#include "cli.h"

#define INPUT_DIGEST_BYTES 32

/*
 * The standard input of CMD, as an open file at its start: a private copy of path ("-": standard
 * input), so that CMD reads exactly what was fingerprinted; /dev/null where path is NULL. Its
 * SHA-256 is written to digest. CLI_OK, with *fd, or an exit code after saying why not.
 */
int input_open(const cli_invocation *invocation, const char *path, unsigned char digest[INPUT_DIGEST_BYTES], int *fd);
/*
 * The bytes that stand for CMD: a version, the number of its words, each word with its length
 * before it, and the digest of its input where it has one (NULL: none). Freed with bytes_free.
 */
bytes input_request(char *const *argv, int count, const unsigned char *digest);
