/* SPDX-License-Identifier: PostgreSQL */
/*
 * metrics.c: see metrics.h. Families and figures are lists that only grow, under a lock; the
 * figures themselves are atomic.
 */
#include "metrics.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "openmetrics.h"

#define TEXT_BYTES_MAX ((size_t)16 << 20)

struct metric {
	metric *next;
	_Atomic uint64_t bits; /* of a double */
	char labels[];         /* name="value",..., escaped; "" without labels */
};

typedef struct family {
	struct family *next;
	char *name, *help;
	metric_kind kind;
	metric *first, **end;
} family;

struct metrics {
	pthread_mutex_t lock;
	family *first, **end;
	family *last_used; /* figures are added family by family */
};

metrics *metrics_new(void)
{
	metrics *made = calloc(1, sizeof *made);

	if (made != NULL && pthread_mutex_init(&made->lock, NULL) != 0) {
		free(made);
		made = NULL;
	}
	if (made != NULL) {
		made->end = &made->first;
	}
	return made;
}

static void free_family(family *family)
{
	for (metric *at = family->first, *next = NULL; at != NULL; at = next) {
		next = at->next;
		free(at);
	}
	free(family->name);
	free(family->help);
	free(family);
}

void metrics_clear(metrics *metrics)
{
	if (metrics == NULL) {
		return;
	}
	pthread_mutex_lock(&metrics->lock);
	for (family *at = metrics->first, *next = NULL; at != NULL; at = next) {
		next = at->next;
		free_family(at);
	}
	metrics->first = metrics->last_used = NULL;
	metrics->end = &metrics->first;
	pthread_mutex_unlock(&metrics->lock);
}

void metrics_free(metrics *metrics)
{
	if (metrics == NULL) {
		return;
	}
	metrics_clear(metrics);
	pthread_mutex_destroy(&metrics->lock);
	free(metrics);
}

/* ---- adding */

static bool is_name(const char *name)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
	static const char more[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";

	return name[0] != '\0' && strchr(letters, name[0]) != NULL && name[strspn(name, more)] == '\0';
}

static family *find_family(const metrics *metrics, const char *name)
{
	if (metrics->last_used != NULL && strcmp(metrics->last_used->name, name) == 0) {
		return metrics->last_used;
	}
	for (family *at = metrics->first; at != NULL; at = at->next) {
		if (strcmp(at->name, name) == 0) {
			return at;
		}
	}
	return NULL;
}

static family *add_family(metrics *metrics, metric_kind kind, const char *name, const char *help)
{
	family *made = is_name(name) ? calloc(1, sizeof *made) : NULL;

	if (made == NULL) {
		return NULL;
	}
	*made = (family){.name = strdup(name), .help = strdup(help), .kind = kind};
	made->end = &made->first;
	if (made->name == NULL || made->help == NULL) {
		free_family(made);
		return NULL;
	}
	*metrics->end = made;
	metrics->end = &made->next;
	return made;
}

/* In the given order; NULL: out of memory, or an invalid name. */
static char *write_labels(const metric_label *labels, size_t count)
{
	buffer out = {.length_max = TEXT_BYTES_MAX};
	size_t length = 0;

	for (size_t i = 0; i < count; i++) {
		out.failed = out.failed || !is_name(labels[i].name);
		buffer_text(&out, i == 0 ? "" : ",");
		buffer_text(&out, labels[i].name);
		buffer_text(&out, "=\"");
		openmetrics_label(&out, (http_text){.data = labels[i].value, .length = strlen(labels[i].value)});
		buffer_text(&out, "\"");
	}
	return buffer_take(&out, &length);
}

static metric *find_or_add(family *family, const char *labels)
{
	for (metric *at = family->first; at != NULL; at = at->next) {
		if (strcmp(at->labels, labels) == 0) {
			return at;
		}
	}
	metric *made = calloc(1, sizeof *made + strlen(labels) + 1);
	if (made != NULL) {
		memcpy(made->labels, labels, strlen(labels) + 1);
		*family->end = made;
		family->end = &made->next;
	}
	return made;
}

metric *metrics_add(metrics *metrics, metric_kind kind, const char *name, const char *help, const metric_label *labels,
                    size_t label_count)
{
	char *written = metrics == NULL ? NULL : write_labels(labels, label_count);
	metric *found = NULL;

	if (written == NULL) {
		return NULL;
	}
	pthread_mutex_lock(&metrics->lock);
	family *family = find_family(metrics, name);
	family = family == NULL ? add_family(metrics, kind, name, help) : family;
	if (family != NULL && family->kind == kind) {
		metrics->last_used = family;
		found = find_or_add(family, written);
	}
	pthread_mutex_unlock(&metrics->lock);
	free(written);
	return found;
}

metric *metrics_add_labelled(metrics *metrics, metric_kind kind, const char *name, const char *help, const char *label,
                             const char *value)
{
	return metrics_add(metrics, kind, name, help, &(metric_label){.name = label, .value = value}, 1);
}

/* ---- figures */

static uint64_t bits_of(double value)
{
	uint64_t bits = 0;

	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static double value_of(uint64_t bits)
{
	double value = 0;

	memcpy(&value, &bits, sizeof value);
	return value;
}

void metric_count(metric *metric, uint64_t increment)
{
	if (metric != NULL && increment > 0) {
		uint64_t before = atomic_load(&metric->bits);
		while (!atomic_compare_exchange_weak(&metric->bits, &before, bits_of(value_of(before) + (double)increment))) {
		}
	}
}

void metric_set(metric *metric, double value)
{
	if (metric != NULL) {
		atomic_store(&metric->bits, bits_of(value));
	}
}

void metric_set_now(metric *metric)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	int64_t now_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
	metric_set(metric, (double)now_ms / 1000);
}

double metric_value(const metric *metric)
{
	return metric == NULL ? 0 : value_of(atomic_load(&metric->bits));
}

/* ---- the text */

static void write_family(const family *family, buffer *out)
{
	openmetrics_family(out, family->kind == METRIC_COUNTER ? "counter" : "gauge", family->name, family->help);
	for (const metric *at = family->first; at != NULL; at = at->next) {
		buffer_text(out, family->name);
		buffer_text(out, family->kind == METRIC_COUNTER ? "_total" : "");
		if (at->labels[0] != '\0') {
			buffer_text(out, "{");
			buffer_text(out, at->labels);
			buffer_text(out, "}");
		}
		buffer_text(out, " ");
		openmetrics_number(out, metric_value(at));
		buffer_text(out, "\n");
	}
}

static void write_families(metrics *metrics, struct metrics *without, buffer *out)
{
	pthread_mutex_lock(&metrics->lock);
	for (const family *at = metrics->first; at != NULL; at = at->next) {
		if (without == NULL || find_family(without, at->name) == NULL) {
			write_family(at, out);
		}
	}
	pthread_mutex_unlock(&metrics->lock);
}

char *metrics_write(metrics *metrics, struct metrics *more, size_t *length)
{
	buffer out = {.length_max = TEXT_BYTES_MAX};

	write_families(metrics, NULL, &out);
	if (more != NULL) {
		write_families(more, metrics, &out);
	}
	buffer_text(&out, "# EOF\n");
	return buffer_take(&out, length);
}
