/* SPDX-License-Identifier: PostgreSQL */
/*
 * openmetrics.h: writes OpenMetrics 1.0, and the older text format of Prometheus, for the gateway's
 * status page (metrics.c) and the metrics of long-running jobs (runtime/).
 */
#pragma once

#include "buffer.h"

/*
 * "# TYPE" and "# HELP" of a family, whose name has no suffix yet; its samples follow, and "#
 * EOF\n" after the last family.
 */
void openmetrics_family(buffer *out, const char *type, const char *name, const char *help);
/*
 * The text between the quotes of a label: a byte that is not UTF-8 becomes '?', and so does a zero.
 * Control characters stay, as both formats allow: names that differ in one are two series.
 */
void openmetrics_label(buffer *out, http_text text);
/* A whole number without a point or an exponent; "+Inf", "NaN" as the format names them. */
void openmetrics_number(buffer *out, double number);

#define OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"
#define PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"
/*
 * Does an Accept header ask for OpenMetrics? Other clients, including promtool and people, get the
 * older format.
 */
bool openmetrics_accepted(http_text accept);
/*
 * Converts a complete OpenMetrics text, which it frees, to the older format. NULL if memory is
 * short. NULL gives NULL.
 */
char *openmetrics_to_prometheus(char *text, size_t *length);
