/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_envelope.c: what is sent for an event, and where to: the stable format of headers,
 * CloudEvents by transport, routes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "envelope.h"
#include "route.h"

static event *make(void)
{
	event *made = event_new(0);

	strcpy(made->event_id, "0193b2a0-5f3e-8c11-9d2a-3f1b6a0c7e55");
	made->topic = "order.created";
	made->event_type = "OrderCreated";
	made->aggregate_type = "order";
	made->aggregate_id = "7";
	made->tenant = "t1";
	made->traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
	made->payload = (once_bytes){.data = "{}", .length = 2};
	made->created_us = INT64_C(1795219200123456);
	return made;
}

static const char *header(const event *event, const char *name)
{
	const char *value = NULL;

	for (size_t i = 0; i < event->message.header_count; i++) {
		if (strcmp(event->message.headers[i].name, name) == 0) {
			assert_null(value);
			value = event->message.headers[i].value;
		}
	}
	return value;
}

static void check(const event *event, const char *const (*expected)[2], size_t count)
{
	for (size_t i = 0; i < count; i++) {
		assert_non_null(header(event, expected[i][0]));
		assert_string_equal(header(event, expected[i][0]), expected[i][1]);
	}
	assert_int_equal(event->message.header_count, count);
}

static void the_plain_envelope_is_stable(void **state)
{
	static const char *const expected[][2] = {
	    {"Pgonce-Event-Id", "0193b2a0-5f3e-8c11-9d2a-3f1b6a0c7e55"},
	    {"Pgonce-Event-Type", "OrderCreated"},
	    {"Pgonce-Topic", "order.created"},
	    {"Pgonce-Tenant", "t1"},
	    {"Pgonce-Aggregate-Type", "order"},
	    {"Pgonce-Key", "7"},
	    {"Pgonce-Created-At", "2026-11-21T00:00:00.123456Z"},
	    {"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	};
	(void)state;
	envelope envelope = envelope_for("kafka", ENVELOPE_PLAIN, "/shop");
	event *event = make();
	envelope_fill(&envelope, event);
	check(event, expected, 8);
	assert_string_equal(event->message.key, "7");
	assert_string_equal(event->message.content_type, "application/json");
	assert_int_equal(event->message.created_ms, INT64_C(1795219200123));
	assert_ptr_equal(event->message.user, event);
	event_free(event);
}

static void what_there_is_not_has_no_header(void **state)
{
	(void)state;
	envelope envelope = envelope_for("nats", ENVELOPE_PLAIN, "/shop");
	event *event = make();
	event->aggregate_type = event->aggregate_id = event->traceparent = NULL;
	event->tenant = "";
	envelope_fill(&envelope, event);
	assert_int_equal(event->message.header_count, 4);
	assert_null(event->message.key);
	event_free(event);
}

static void cloudevents_are_named_as_each_binding_says(void **state)
{
	static const char *const sinks[][2] = {
	    {"kafka", "ce_"}, {"webhook", "ce-"}, {"nats", "ce-"}, {"rabbitmq", "cloudEvents:"}};
	static const char *const attributes[][2] = {
	    {"specversion", "1.0"},
	    {"id", "0193b2a0-5f3e-8c11-9d2a-3f1b6a0c7e55"},
	    {"source", "/shop"},
	    {"type", "OrderCreated"},
	    {"time", "2026-11-21T00:00:00.123456Z"},
	    {"subject", "7"},
	    {"partitionkey", "7"},
	    {"aggregatetype", "order"},
	    {"tenant", "t1"},
	    {"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}};
	(void)state;
	for (size_t i = 0; i < sizeof sinks / sizeof sinks[0]; i++) {
		envelope envelope = envelope_for(sinks[i][0], ENVELOPE_CLOUDEVENTS, "/shop");
		event *event = make();
		envelope_fill(&envelope, event);
		for (size_t k = 0; k < sizeof attributes / sizeof attributes[0]; k++) {
			char name[64];
			snprintf(name, sizeof name, "%s%s", sinks[i][1], attributes[k][0]);
			assert_string_equal(header(event, name), attributes[k][1]);
		}
		assert_non_null(header(event, "traceparent"));
		assert_int_equal(event->message.header_count, 11);
		event_free(event);
	}
}

static void cloudevents_over_http_are_percent_encoded(void **state)
{
	/* The HTTP binding's own example. */
	static const char euro[] = "Euro \xe2\x82\xac \xf0\x9f\x98\x80";
	(void)state;
	event *event = make();
	event->aggregate_id = euro;
	envelope http = envelope_for("webhook", ENVELOPE_CLOUDEVENTS, "/shop");
	envelope_fill(&http, event);
	assert_string_equal(header(event, "ce-subject"), "Euro%20%E2%82%AC%20%F0%9F%98%80");
	envelope kafka = envelope_for("kafka", ENVELOPE_CLOUDEVENTS, "/shop");
	envelope_fill(&kafka, event);
	assert_string_equal(header(event, "ce_subject"), euro);
	assert_string_equal(event->message.key, euro);
	event_free(event);
}

static void the_key_is_what_is_asked_for(void **state)
{
	static const char *const cases[][2] = {
	    {"aggregate", "7"}, {"tenant", "t1"},        {"event", "0193b2a0-5f3e-8c11-9d2a-3f1b6a0c7e55"},
	    {"none", NULL},     {"header:region", "eu"}, {"header:other", NULL}};
	static const char *const wrong[] = {"", "header:", "header", "Aggregate", "aggregate "};
	const sink_header own[] = {{.name = "Region", .value = "eu"}};
	const char *header_name = NULL;
	envelope_key key;
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		envelope envelope = envelope_for("kafka", ENVELOPE_CLOUDEVENTS, "/shop");
		event *event = make();
		event->headers = own;
		event->header_count = 1;
		assert_true(envelope_read_key(cases[i][0], &envelope.key, &envelope.key_header));
		envelope_fill(&envelope, event);
		assert_string_equal(header(event, "ce_subject"), "7");
		if (cases[i][1] == NULL) {
			assert_null(event->message.key);
			assert_null(header(event, "ce_partitionkey"));
		} else {
			assert_string_equal(event->message.key, cases[i][1]);
			assert_string_equal(header(event, "ce_partitionkey"), cases[i][1]);
		}
		event_free(event);
	}
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		assert_false(envelope_read_key(wrong[i], &key, &header_name));
	}
}

static void no_header_can_be_forged(void **state)
{
	(void)state;
	const sink_header own[] = {{.name = "Evil\r\nX", .value = "a\r\nSet-Cookie: b"},
	                           {.name = "Pgonce-Key", .value = "other"},
	                           {.name = "pgonce-tenant", .value = "other"},
	                           {.name = "TraceParent", .value = "other"},
	                           {.name = "Content-Type", .value = "text/html"},
	                           {.name = "", .value = "x"},
	                           {.name = "fine", .value = "\xc3\xa9"}};
	event *event = make();
	event->aggregate_id = "a\r\nHost: b\x7f";
	event->headers = own;
	event->header_count = sizeof own / sizeof own[0];
	envelope envelope = envelope_for("nats", ENVELOPE_PLAIN, "/shop");
	envelope_fill(&envelope, event);
	assert_string_equal(header(event, "Pgonce-Key"), "a%0D%0AHost: b%7F");
	assert_string_equal(header(event, "Evil%0D%0AX"), "a%0D%0ASet-Cookie: b");
	assert_string_equal(header(event, "fine"), "\xc3\xa9");
	assert_int_equal(event->message.header_count, 8 + 2);
	event_free(event);
}

static void a_header_that_would_steer_the_broker_is_renamed(void **state)
{
	(void)state;
	static const char *const names[][3] = {
	    {"nats", "Nats-Rollup", "Event-Nats-Rollup"},
	    {"nats", "nats-msg-id", "Event-nats-msg-id"},
	    {"nats", "Status", "Event-Status"},
	    {"nats", "Statuses", "Statuses"},
	    {"nats", "CC", "CC"},
	    {"rabbitmq", "CC", "Event-CC"},
	    {"rabbitmq", "BCC", "Event-BCC"},
	    {"rabbitmq", "x-delay", "Event-x-delay"},
	    {"rabbitmq", "x-opt-any", "Event-x-opt-any"},
	    {"rabbitmq", "x-request-id", "x-request-id"},
	    {"rabbitmq", "Nats-Rollup", "Nats-Rollup"},
	    {"kafka", "CC", "CC"},
	};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		const sink_header own[] = {{.name = names[i][1], .value = "v"}};
		event *event = make();
		event->headers = own;
		event->header_count = 1;
		envelope envelope = envelope_for(names[i][0], ENVELOPE_PLAIN, "/shop");
		envelope_fill(&envelope, event);
		assert_string_equal(header(event, names[i][2]), "v");
		event_free(event);
	}
}

static void an_events_own_headers_go_along(void **state)
{
	(void)state;
	enum {
		COUNT = 500
	};
	static sink_header own[COUNT];
	static char names[COUNT][16];
	event *event = make();
	for (size_t i = 0; i < COUNT; i++) {
		snprintf(names[i], sizeof names[i], "h\n%zu", i);
		own[i] = (sink_header){.name = names[i], .value = "v\n"};
	}
	event->headers = own;
	event->header_count = COUNT;
	envelope envelope = envelope_for("rabbitmq", ENVELOPE_CLOUDEVENTS, "/shop");
	envelope_fill(&envelope, event);
	assert_int_equal(event->message.header_count, COUNT + 11);
	assert_string_equal(header(event, "h%0A499"), "v%0A");
	event_free(event);
}

/* ---- routes */

static void read_routes(routes *routes, const char *lines, config **config)
{
	char text[1024];
	char *problem = NULL;

	snprintf(text, sizeof text, "[relay r]\nsink = stdout\n%s", lines);
	assert_true(config_parse("test.conf", text, strlen(text), config, &problem));
	assert_true(routes_read(*config, config_find(*config, "relay", "r"), "{topic}", routes, &problem));
}

static const char *destination(const routes *routes, event *event, const char *topic, const char *tenant)
{
	event->topic = topic;
	event->tenant = tenant;
	const route *route = routes_find(routes, event);
	return route == NULL ? NULL : route_destination(route, event);
}

static void the_first_route_that_matches_wins(void **state)
{
	(void)state;
	routes routes;
	config *config = NULL;
	event *event = make();
	read_routes(&routes, "route = order.paid -> paid\nroute = order.* -> shop.{topic}.{tenant}\nroute = x->y\n",
	            &config);
	assert_string_equal(destination(&routes, event, "order.paid", ""), "paid");
	assert_string_equal(destination(&routes, event, "order.paid.twice", "a"), "shop.order.paid.twice.a");
	assert_string_equal(destination(&routes, event, "x", "a"), "y");
	assert_null(destination(&routes, event, "xy", "a"));
	assert_null(destination(&routes, event, "order", "a"));
	char *patterns = routes_patterns(&routes);
	assert_string_equal(patterns, "{\"order.paid\",\"order.%\",\"x\"}");
	free(patterns);
	routes_free(&routes);
	config_free(config);
	event_free(event);
}

static void without_routes_every_topic_is_taken(void **state)
{
	(void)state;
	routes routes;
	config *config = NULL;
	event *event = make();
	read_routes(&routes, "", &config);
	assert_string_equal(destination(&routes, event, "anything", ""), "anything");
	assert_null(routes_patterns(&routes));
	routes_free(&routes);
	config_free(config);
	event_free(event);
}

static void patterns_match_only_what_routes_match(void **state)
{
	(void)state;
	routes routes;
	config *config = NULL;
	read_routes(&routes, "route = a_b%c* -> x\nroute = q\\z -> y\n", &config);
	char *patterns = routes_patterns(&routes);
	/* LIKE's own escapes, escaped once more for the array. */
	assert_string_equal(patterns, "{\"a\\\\_b\\\\%c%\",\"q\\\\\\\\z\"}");
	free(patterns);
	routes_free(&routes);
	config_free(config);
}

static void no_name_leads_to_another_path_of_a_url(void **state)
{
	(void)state;
	routes routes;
	config *config = NULL;
	event *event = make();
	read_routes(&routes, "route = * -> https://h/{tenant}/{topic}\n", &config);
	assert_string_equal(destination(&routes, event, "a b", "x/../y?z#\xc3\xa9"),
	                    "https://h/x%2F..%2Fy%3Fz%23%C3%A9/a%20b");
	assert_string_equal(destination(&routes, event, "t", ".."), "https://h/_/t");
	routes_free(&routes);
	config_free(config);
	event_free(event);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_plain_envelope_is_stable),
	    cmocka_unit_test(what_there_is_not_has_no_header),
	    cmocka_unit_test(cloudevents_are_named_as_each_binding_says),
	    cmocka_unit_test(cloudevents_over_http_are_percent_encoded),
	    cmocka_unit_test(the_key_is_what_is_asked_for),
	    cmocka_unit_test(no_header_can_be_forged),
	    cmocka_unit_test(a_header_that_would_steer_the_broker_is_renamed),
	    cmocka_unit_test(an_events_own_headers_go_along),
	    cmocka_unit_test(the_first_route_that_matches_wins),
	    cmocka_unit_test(without_routes_every_topic_is_taken),
	    cmocka_unit_test(patterns_match_only_what_routes_match),
	    cmocka_unit_test(no_name_leads_to_another_path_of_a_url),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
