/* SPDX-License-Identifier: PostgreSQL */
/*
 * openmetrics.h: how OpenMetrics 1.0 is written, for whoever has figures: the gateway's status page (metrics.c) and the
 * metrics of long-running jobs (service/).
 */
#pragma once

#include "buffer.h"

/* "# TYPE" and "# HELP" of a family, whose name has no suffix yet; its samples follow, then "# EOF\n" after the last family. */
void openmetrics_family(buffer *out, const char *type, const char *name, const char *help);
/* What stands between the quotes of a label: a control character, and a byte that is not of UTF-8, becomes '?'. */
void openmetrics_label(buffer *out, http_text text);
/* A whole number without a point or an exponent; "+Inf", "NaN" as they are called there. */
void openmetrics_number(buffer *out, double number);
