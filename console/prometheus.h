/* SPDX-License-Identifier: PostgreSQL */
/*
 * prometheus.h: the figures of the last hours from a Prometheus server that scrapes pgonce keep,
 * instead of those that this process has seen. One thread uses it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct prometheus prometheus;

/* url: "http://127.0.0.1:9090"; job: of the scrape; NULL: any. Both are borrowed. */
prometheus *prometheus_new(const char *url, const char *job);
void prometheus_free(prometheus *prometheus);
/* "": good; else what is wrong with the URL. */
const char *prometheus_mistake(const char *url);
/*
 * Asks for one figure, from `from` on in steps of step_s: values[i] of count, or NAN. %J in the
 * expression is replaced by the job's condition. False: *problem (free it). Takes some seconds at
 * most.
 */
bool prometheus_ask(prometheus *prometheus, const char *expression, int64_t from, int step_s, float *values,
                    size_t count, char **problem);
