/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_credentials.h: as whom to call AWS. As its SDKs look for it, the first that is there: the
 * environment; a web identity (STS AssumeRoleWithWebIdentity); the shared file (keys, a program, a
 * role by STS AssumeRole); the container's endpoint (ECS, EKS Pod Identity); the machine's role
 * (EC2, IMDSv2). They are read again before they expire, so that what is rotated needs no restart.
 * Used by aws.c alone.
 */
#pragma once

#include "aws.h"

typedef struct aws_keychain aws_keychain;

/* Never NULL. The address outlives it. */
aws_keychain *aws_keychain_new(const speaker *speaker, const aws_address *address);
void aws_keychain_free(aws_keychain *keychain);
/*
 * What is valid now, until the next call of this file. May wait for whoever gives them out, some
 * seconds. NULL: problem says what was asked, and what came.
 */
const aws_credentials *aws_keychain_get(aws_keychain *keychain, char problem[BROKER_PROBLEM_BYTES]);
/* The service refuses them: the next aws_keychain_get asks again. False: that was done just now. */
bool aws_keychain_renew(aws_keychain *keychain);
