/* SPDX-License-Identifier: PostgreSQL */
/*
 * render.h: templates with values of JSON in them. The tags are Mustache's (mustache(5)): {{name}},
 * {{a.b}}, {{.}}, {{#section}}...{{/section}}, {{^inverted}}...{{/inverted}}, {{>partial}} and
 * {{! comment}}. Each value is escaped for HTML, without exception. Names are looked up
 * outwards through the sections. A missing name, null, false, 0, "", [] and {} are false.
 *
 * A filter stands after a bar: {{age_ms|age}} "3 m 20 s", {{n|bytes}} "1.5 MiB", {{n|number}}
 * "1,234", {{at|time}} "2026-11-30 19:20:01Z", {{key|url}} for a query string, {{v|json}} indented.
 * A value that the filter does not know is written as it is.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct template_source {
	const char *name; /* as in {{>name}} */
	const char *text; /* borrowed for the life of the templates */
	size_t length;
} template_source;

typedef struct templates templates;

/*
 * All templates of a program. NULL: *problem (free it) names the first mistake ("name:line: ...").
 */
templates *templates_parse(const template_source *sources, size_t count, char **problem);
void templates_free(templates *templates);
/*
 * The text and its length; free it. NULL: out of memory, there is no such template, or the result
 * is larger than RENDERED_BYTES_MAX or takes more than RENDERED_STEPS_MAX tags. Threads may share
 * the templates.
 */
#define RENDERED_BYTES_MAX ((size_t)16 * 1024 * 1024)
#define RENDERED_STEPS_MAX 2000000
char *templates_render(const templates *templates, const char *name, const json_t *document, size_t *length);
