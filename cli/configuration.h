/* SPDX-License-Identifier: PostgreSQL */
/* configuration.h: the options of the configuration file as documents:
 * docs/reference/configuration.md and pgonce.conf(5). */
#pragma once

#include <stdio.h>

void configuration_markdown(FILE *out);
void configuration_roff(FILE *out);
