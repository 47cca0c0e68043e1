/* SPDX-License-Identifier: PostgreSQL */
/*
 * metrics.h: figures of a long-running job, for Prometheus and similar tools: counters and gauges
 * in families, written as OpenMetrics 1.0. Any thread may add, change and write. Callers need not
 * check for memory or a registry: without it, nothing is counted.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum metric_kind {
	METRIC_COUNTER, /* written with _total, which `name` does not have */
	METRIC_GAUGE
} metric_kind;

typedef struct metric_label {
	const char *name, *value;
} metric_label;

typedef struct metrics metrics;
typedef struct metric metric;

metrics *metrics_new(void);
void metrics_free(metrics *metrics);
/* Removes all figures; no caller may use them any more. */
void metrics_clear(metrics *metrics);
/*
 * A figure, at zero; it lives as long as the registry. All text is copied. The same name and labels
 * return the same figure. NULL: the registry is NULL, out of memory, the name is not valid in
 * OpenMetrics, or the family has another kind.
 */
metric *metrics_add(metrics *metrics, metric_kind kind, const char *name, const char *help, const metric_label *labels,
                    size_t label_count);
/* The same with one label. */
metric *metrics_add_labelled(metrics *metrics, metric_kind kind, const char *name, const char *help, const char *label,
                             const char *value);
void metric_count(metric *metric, uint64_t increment);
void metric_set(metric *metric, double value);
/* Now, in seconds since 1970, the unit of _timestamp_seconds. */
void metric_set_now(metric *metric);
double metric_value(const metric *metric);
/*
 * The whole text, with "# EOF"; free it. The figures of `more` (NULL allowed) follow, without the
 * families that the first registry has. NULL: out of memory, or more than 16 MB.
 */
char *metrics_write(metrics *metrics, struct metrics *more, size_t *length);
