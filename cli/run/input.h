/* SPDX-License-Identifier: PostgreSQL */
/* input.h: the input of the fingerprint of pgonce run. */
#pragma once

#include "bytes.h"
#include "cli.h"

#define INPUT_DIGEST_BYTES 32

/*
 * The standard input of CMD, as an open file at its start: a private copy of path ("-": standard
 * input), so that CMD reads exactly what was fingerprinted; /dev/null if path is NULL. Its SHA-256
 * is written to digest. CLI_OK, with *fd, or an exit code after an error message.
 */
int input_open(const cli_invocation *invocation, const char *path, unsigned char digest[INPUT_DIGEST_BYTES], int *fd);
/*
 * The bytes that represent CMD: a version, the number of its words, each word after its length, and
 * the digest of its input if it has one (NULL: none). Freed with bytes_free.
 */
bytes input_request(char *const *argv, int count, const unsigned char *digest);
