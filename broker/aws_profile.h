/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_profile.h: the files that AWS's tools keep on a machine: the shared files ~/.aws/credentials
 * and ~/.aws/config, files with a token, and programs that print credentials. Used by aws.c and
 * aws_credentials.c.
 */
#pragma once

#include <stdbool.h>

#include "broker.h"

/* An entry of the profile in an AWS INI file; NULL: none. Free it. is_config: [profile NAME]. */
char *aws_profile_entry(const char *path, bool is_config, const char *profile, const char *name);
/*
 * The path of an AWS shared file: the environment's `variable`, or ~/.aws/`name` (free it); NULL:
 * none.
 */
char *aws_shared_path(const char *variable, const char *name);
/* An entry of the profile in ~/.aws/credentials, else in ~/.aws/config; NULL: none. Free it. */
char *aws_shared_entry(const char *profile, const char *name);
/* A small file's whole text, trimmed (free it); NULL: it is empty or cannot be read; see
 * problem. */
char *aws_token_read(const char *path, char problem[BROKER_PROBLEM_BYTES]);
/*
 * A shell command's standard output, within ten seconds (free it); NULL: problem, and none of its
 * processes is left.
 */
char *aws_program_run(const char *command, char problem[BROKER_PROBLEM_BYTES]);
