/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_credentials.h: the credentials for AWS. Searched like its SDKs do; the first one present
 * counts: the environment; a web identity (STS AssumeRoleWithWebIdentity); the shared file (keys, a
 * program, a role by STS AssumeRole); the container's endpoint (ECS, EKS Pod Identity); the
 * machine's role (EC2, IMDSv2). They are read again before they expire, so that rotation needs no
 * restart. Used by aws.c alone.
 */
#pragma once

#include "aws.h"

typedef struct aws_keychain aws_keychain;

/* Never NULL. The address must outlive it. */
aws_keychain *aws_keychain_new(const speaker *speaker, const aws_address *address);
void aws_keychain_free(aws_keychain *keychain);
/*
 * The valid credentials, until the next call of this file. May wait some seconds for their
 * provider. NULL: problem says what was asked and what it answered.
 */
const aws_credentials *aws_keychain_get(aws_keychain *keychain, char problem[BROKER_PROBLEM_BYTES]);
/* The service refuses them: the next aws_keychain_get asks again. False: it was done just now. */
bool aws_keychain_renew(aws_keychain *keychain);
