/* SPDX-License-Identifier: PostgreSQL */
/* samples.c: see samples.h. */
#include "samples.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "buffer.h"
#include "memory.h"
#include "pool.h"
#include "prometheus.h"

enum {
	INTERVAL_MS = 10000,
	SAMPLES_MAX = 6 * 3600 / 10, /* six hours */
	DOCTOR_MS = 60000,
	WIDTH = 600,
	HEIGHT = 100,
	POINTS_MAX = 180
};

typedef struct figure {
	const char *name; /* the member of sample.sql's document */
	const char *label;
	const char *unit;
	bool is_counter;        /* shown as what is added in a second */
	const char *expression; /* the same in PromQL; NULL: Prometheus does not have it */
} figure;

/* A database may be scraped more than once, from keepers that stand by: each figure counts once. */
#define ATTEMPTS(intents, messages)                                                                                    \
	"sum(max by (job, verdict) (rate(pgonce_intents_total{verdict=~\"" intents "\",%J}[2m]))) + "                      \
	"(sum(max by (job, verdict) (rate(pgonce_inbox_total{verdict=~\"" messages "\",%J}[2m]))) or vector(0))"
#define PARKED(state)                                                                                                  \
	"(sum(max by (job, relay, topic, state) (pgonce_outbox_parked{state" state "\"dead\",%J})) or vector(0)) + "       \
	"(sum(max by (job, consumer, topic, state) (pgonce_inbox_parked{state" state "\"dead\",%J})) or vector(0))"

static const figure figures[] = {
    {"new", "New attempts", "per second", true, ATTEMPTS("new|stale|retryable", "process")},
    {"replay", "Replayed", "per second", true, ATTEMPTS("replay", "duplicate")},
    {"mismatch", "Mismatches", "per second", true, ATTEMPTS("mismatch", "mismatch")},
    {"active", "Refused: another attempt runs", "per second", true, ATTEMPTS("active", "")},
    {"refused", "Refused for good", "per second", true, ATTEMPTS("final|in_doubt|expired", "")},
    {"stale", "Stale attempts", "", false, "sum(max by (job, scope) (pgonce_stale{%J}))"},
    {"in_doubt", "In doubt", "", false, "sum(max by (job, scope) (pgonce_in_doubt{%J}))"},
    {"pending", "Events to be delivered", "", false, "sum(max by (job, relay, topic) (pgonce_outbox_pending{%J}))"},
    {"parked", "Parked events and messages", "", false, PARKED("!=")},
    {"dead", "Dead events and messages", "", false, PARKED("=")},
    {"lag_seconds", "Lag of the slowest relay", "s", false, "max(pgonce_outbox_lag_seconds{%J})"},
    {"consumer_lag_seconds", "Lag of the slowest consumer", "s", false, NULL},
};

enum {
	FIGURES = sizeof figures / sizeof figures[0]
};

typedef struct sample {
	double epoch;
	float values[FIGURES]; /* NAN: unknown */
} sample;

/* The newest samples, in a ring. */
typedef struct history {
	sample list[SAMPLES_MAX];
	size_t count, next;
} history;

struct samples {
	const console_call *call;
	const speaker *speaker;
	pool *pool;
	prometheus *prometheus; /* NULL: none */
	pthread_t thread;
	pthread_mutex_t lock;
	history own;
	history remote; /* without samples: it could not be asked */
	bool is_failing;
	double counters[FIGURES]; /* of the last sample */
	double counted;           /* its epoch */
	json_t *doctor;
};

/* ---- taking */

static double number_in(const json_t *json, const char *name)
{
	const json_t *value = json_object_get(json, name);

	return json_is_number(value) ? json_number_value(value) : NAN;
}

/* A counter that has begun anew counts from 0. */
static float value_of(samples *samples, int i, double epoch, double number)
{
	if (!figures[i].is_counter) {
		return (float)number;
	}
	double before = samples->counters[i], seconds = epoch - samples->counted;
	samples->counters[i] = number;
	return samples->counted == 0 || seconds <= 0 ? NAN
	                                             : (float)((number < before ? number : number - before) / seconds);
}

static void add(samples *samples, const json_t *json)
{
	double epoch = number_in(json, "epoch");
	sample *sample = &samples->own.list[samples->own.next];

	if (isnan(epoch)) {
		return;
	}
	sample->epoch = epoch;
	for (int i = 0; i < FIGURES; i++) {
		sample->values[i] = value_of(samples, i, epoch, number_in(json, figures[i].name));
	}
	samples->counted = epoch;
	samples->own.next = (samples->own.next + 1) % SAMPLES_MAX;
	samples->own.count += samples->own.count < SAMPLES_MAX;
}

/* False: the database could not be asked. */
static bool take_sample(samples *samples)
{
	failure failure = {0};
	char *text = pool_ask(samples->pool, SQL_SAMPLE, NULL, POOL_READ, &failure);
	json_t *json = text == NULL ? NULL : json_loads(text, 0, NULL);

	pthread_mutex_lock(&samples->lock);
	add(samples, json);
	pthread_mutex_unlock(&samples->lock);
	json_decref(json);
	bool good = text != NULL;
	free(text);
	return good;
}

static void ask_doctor(samples *samples)
{
	json_t *said = samples->call->doctor(samples->call->argument);

	pthread_mutex_lock(&samples->lock);
	json_t *before = samples->doctor;
	samples->doctor = said;
	pthread_mutex_unlock(&samples->lock);
	json_decref(before);
}

/* ---- from Prometheus */

static void tell_failing(samples *samples, char *problem)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	if (problem != NULL && !samples->is_failing) {
		runtime_log(samples->speaker, RUNTIME_WARNING, "prometheus", "problem=%s", runtime_quote(problem, quoted));
	}
	samples->is_failing = problem != NULL;
	free(problem);
}

static void ask_prometheus(samples *samples)
{
	static const int step_s = INTERVAL_MS / 1000 * SAMPLES_MAX / POINTS_MAX;
	int64_t from = (int64_t)time(NULL) / step_s * step_s - (POINTS_MAX - 1) * step_s;
	float *values = memory_array(NULL, (size_t)FIGURES * POINTS_MAX, sizeof *values);
	char *problem = NULL;

	for (int i = 0; i < FIGURES * POINTS_MAX; i++) {
		values[i] = NAN;
	}
	for (int i = 0; i < FIGURES && problem == NULL; i++) {
		if (figures[i].expression != NULL) {
			(void)prometheus_ask(samples->prometheus, figures[i].expression, from, step_s, values + i * POINTS_MAX,
			                     POINTS_MAX, &problem);
		}
	}
	pthread_mutex_lock(&samples->lock);
	samples->remote.count = samples->remote.next = problem == NULL ? POINTS_MAX : 0;
	for (int at = 0; at < POINTS_MAX; at++) {
		samples->remote.list[at].epoch = (double)(from + at * step_s);
		for (int i = 0; i < FIGURES; i++) {
			samples->remote.list[at].values[i] = values[i * POINTS_MAX + at];
		}
	}
	pthread_mutex_unlock(&samples->lock);
	tell_failing(samples, problem);
	free(values);
}

/* ---- the thread */

static void *run(void *argument)
{
	samples *samples = argument;
	int64_t doctor_ms = 0;

	do {
		if (samples->prometheus != NULL) {
			ask_prometheus(samples);
		}
		if (take_sample(samples) && runtime_now_ms() >= doctor_ms) {
			ask_doctor(samples);
			doctor_ms = runtime_now_ms() + DOCTOR_MS;
		}
	} while (!runtime_sleep(INTERVAL_MS));
	return NULL;
}

samples *samples_start(const console_call *call, const speaker *speaker)
{
	samples *made = memory_take(sizeof *made);

	pthread_mutex_init(&made->lock, NULL);
	made->call = call;
	made->speaker = speaker;
	made->pool = pool_new(call->conninfo, speaker, 1);
	made->prometheus = call->prometheus == NULL ? NULL : prometheus_new(call->prometheus, call->prometheus_job);
	if (pthread_create(&made->thread, NULL, run, made) != 0) {
		memory_out();
	}
	return made;
}

void samples_end(samples *samples)
{
	pthread_join(samples->thread, NULL);
	pool_free(samples->pool);
	prometheus_free(samples->prometheus);
	json_decref(samples->doctor);
	pthread_mutex_destroy(&samples->lock);
	free(samples);
}

/* ---- telling */

static const sample *sample_at(const history *history, size_t i)
{
	return &history->list[(history->next + SAMPLES_MAX - history->count + i) % SAMPLES_MAX];
}

/* Each point stands for some samples in a row: the largest of them. */
static float largest(const history *history, int figure, size_t from, size_t to)
{
	float most = NAN;

	for (size_t i = from; i < to; i++) {
		most = fmaxf(most, sample_at(history, i)->values[figure]); /* NAN only if both are */
	}
	return most;
}

static char *points_of(const history *history, int figure, float most)
{
	buffer out = {.length_max = 65536};
	size_t step = (history->count + POINTS_MAX - 1) / POINTS_MAX, length = 0;
	double from = sample_at(history, 0)->epoch;
	double span = sample_at(history, history->count - 1)->epoch - from;

	for (size_t i = 0; i < history->count; i += step) {
		size_t end = i + step < history->count ? i + step : history->count;
		float value = largest(history, figure, i, end);
		if (!isnan(value)) {
			double x = span <= 0 ? 0 : (sample_at(history, end - 1)->epoch - from) / span * WIDTH;
			buffer_format(&out, "%s%.0f,%.1f", out.length == 0 ? "" : " ", x,
			              HEIGHT - (most <= 0 ? 0 : (double)(value / most)) * HEIGHT);
		}
	}
	return buffer_take(&out, &length);
}

static json_t *time_of(double epoch)
{
	char text[32];
	time_t seconds = (time_t)epoch;
	struct tm tm;

	gmtime_r(&seconds, &tm);
	strftime(text, sizeof text, "%FT%TZ", &tm);
	return json_string(text);
}

/* At most three digits after the point: more is not known. */
static json_t *number_of(float value)
{
	return isnan(value) ? json_null() : json_real(round((double)value * 1000) / 1000);
}

static json_t *series_of(const history *history, int figure)
{
	float most = largest(history, figure, 0, history->count);
	char *points = points_of(history, figure, most);
	json_t *series = json_pack(
	    "{s:s, s:s, s:s, s:o, s:o, s:s, s:o, s:o}", "name", figures[figure].name, "label", figures[figure].label,
	    "unit", figures[figure].unit, "last", number_of(sample_at(history, history->count - 1)->values[figure]), "max",
	    number_of(most), "points", points == NULL ? "" : points, "from", time_of(sample_at(history, 0)->epoch), "to",
	    time_of(sample_at(history, history->count - 1)->epoch));

	free(points);
	return series;
}

json_t *samples_series(samples *samples)
{
	json_t *all = json_array();

	pthread_mutex_lock(&samples->lock);
	const history *history = samples->remote.count > 0 ? &samples->remote : &samples->own;
	for (int i = 0; i < FIGURES && history->count >= 2; i++) {
		json_array_append_new(all, series_of(history, i));
	}
	pthread_mutex_unlock(&samples->lock);
	return all;
}

json_t *samples_doctor(samples *samples)
{
	pthread_mutex_lock(&samples->lock);
	/* A copy: references are not counted across threads. */
	json_t *said = json_deep_copy(samples->doctor);
	pthread_mutex_unlock(&samples->lock);
	return said;
}
