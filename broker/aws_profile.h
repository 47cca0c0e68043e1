/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_profile.h: what AWS's tools keep on a machine: the shared files ~/.aws/credentials and
 * ~/.aws/config, files with a token, and programs that give credentials out. Used by aws.c and
 * aws_credentials.c.
 */
#pragma once

#include <stdbool.h>

#include "broker.h"

/* An entry of the profile in an INI file of AWS; NULL: none. Free it. is_config: [profile NAME]. */
char *aws_profile_entry(const char *path, bool is_config, const char *profile, const char *name);
/*
 * The path of a shared file of AWS: `variable` of the environment, or ~/.aws/`name` (free it);
 * NULL: none.
 */
char *aws_shared_path(const char *variable, const char *name);
/* An entry of the profile in ~/.aws/credentials, else in ~/.aws/config; NULL: none. Free it. */
char *aws_shared_entry(const char *profile, const char *name);
/* All of a small file, trimmed (free it); NULL: it is empty, or problem says why not. */
char *aws_token_read(const char *path, char problem[BROKER_PROBLEM_BYTES]);
/*
 * What a command of the shell writes to standard output, in ten seconds at most (free it); NULL:
 * problem, and no process of it is left.
 */
char *aws_program_run(const char *command, char problem[BROKER_PROBLEM_BYTES]);
