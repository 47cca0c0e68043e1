/* SPDX-License-Identifier: PostgreSQL */
/* configuration.h: the options of the configuration file as a document: docs/configuration.md. */
#pragma once

#include <stdio.h>

void configuration_markdown(FILE *out);
