/* SPDX-License-Identifier: PostgreSQL */
/*
 * render.c: see render.h. A template becomes a list of nodes. A section's node knows its end, so
 * that writing walks the list once, without searching. filter.c writes the values.
 */
#include "render.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "filter.h"
#include "memory.h"

enum {
	NAME_BYTES = 64,
	DEPTH_MAX = 16 /* of sections, and of partials, in each other */
};

typedef enum node_kind {
	NODE_TEXT,
	NODE_VALUE,
	NODE_SECTION = '#',
	NODE_INVERTED = '^',
	NODE_PARTIAL = '>',
	NODE_CLOSE = '/', /* in reading only, as a comment */
	NODE_COMMENT = '!'
} node_kind;

typedef struct node {
	node_kind kind;
	filter filter;
	const char *text; /* of a text; borrowed */
	size_t length;
	size_t end;            /* a section's: the node behind it; a partial's: the template's index */
	char name[NAME_BYTES]; /* "a.b", "." */
} node;

typedef struct parsed {
	node *nodes;
	size_t count;
} parsed;

struct templates {
	const template_source *sources;
	size_t count;
	parsed list[];
};

/* ---- reading */

typedef struct reading {
	templates *templates;
	parsed *template;
	const template_source *source;
	const char *at;
	size_t open[DEPTH_MAX]; /* the sections that are open */
	size_t depth;
	char *problem;
} reading;

static bool wrong(reading *reading, const char *what, const char *name)
{
	int line = 1;

	for (const char *at = reading->source->text; at < reading->at; at++) {
		line += *at == '\n';
	}
	reading->problem = memory_format("%s:%d: %s%s", reading->source->name, line, what, name);
	return false;
}

static node *add_node(parsed *template, const node *node)
{
	if ((template->count & (template->count - 1)) == 0) { /* it is full */
		template->nodes =
		    memory_array(template->nodes, template->count == 0 ? 1 : 2 * template->count, sizeof *template->nodes);
	}
	template->nodes[template->count] = *node;
	return &template->nodes[template->count++];
}

static void add_text(parsed *template, const char *text, size_t length)
{
	add_node(template, &(node){.kind = NODE_TEXT, .text = text, .length = length});
}

static size_t find(const templates *templates, const char *name)
{
	size_t i = 0;

	while (i < templates->count && strcmp(templates->sources[i].name, name) != 0) {
		i++;
	}
	return i;
}

static bool close_section(reading *reading, const char *name)
{
	node *opened = reading->depth == 0 ? NULL : &reading->template->nodes[reading->open[reading->depth - 1]];

	if (opened == NULL || strcmp(opened->name, name) != 0) {
		return wrong(reading, opened == NULL ? "no section is open: /" : "another section is open: /", name);
	}
	opened->end = reading->template->count;
	reading->depth--;
	return true;
}

static bool add_tag(reading *reading, node_kind kind, const char *text)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
	size_t length = kind == NODE_VALUE ? strcspn(text, "|") : strlen(text);
	node *made = add_node(reading->template, &(node){.kind = kind});

	snprintf(made->name, sizeof made->name, "%.*s", (int)length, text);
	if (length == 0 || made->name[strspn(made->name, allowed)] != '\0') {
		return wrong(reading, "not a name: ", text);
	}
	if (text[length] == '|' && !filter_find(text + length + 1, &made->filter)) {
		return wrong(reading, "an unknown filter: ", text + length + 1);
	}
	if (kind == NODE_PARTIAL) {
		made->end = find(reading->templates, text);
		return made->end < reading->templates->count || wrong(reading, "no such partial: ", text);
	}
	if (kind != NODE_VALUE) {
		if (reading->depth == DEPTH_MAX) {
			return wrong(reading, "too many sections in each other: ", text);
		}
		reading->open[reading->depth++] = reading->template->count - 1;
	}
	return true;
}

/* From behind the braces to the closing ones. */
static bool read_tag(reading *reading, const char *from, const char *to)
{
	node_kind kind = from < to && strchr("#^>/!", *from) != NULL ? (node_kind)*from++ : NODE_VALUE;
	char name[NAME_BYTES];

	while (from < to && (*from == ' ' || *from == '\n')) {
		from++;
	}
	while (to > from && (to[-1] == ' ' || to[-1] == '\n')) {
		to--;
	}
	snprintf(name, sizeof name, "%.*s", (int)(to - from), from);
	if (kind == NODE_COMMENT) {
		return true;
	}
	if ((size_t)(to - from) != strlen(name)) {
		return wrong(reading, "a tag is too long: ", name);
	}
	return kind == NODE_CLOSE ? close_section(reading, name) : add_tag(reading, kind, name);
}

static bool read_template(reading *reading)
{
	const char *end = reading->at + reading->source->length;

	for (const char *open; (open = memmem(reading->at, (size_t)(end - reading->at), "{{", 2)) != NULL;) {
		const char *close = memmem(open + 2, (size_t)(end - open - 2), "}}", 2);
		add_text(reading->template, reading->at, (size_t)(open - reading->at));
		reading->at = open;
		if (close == NULL) {
			return wrong(reading, "a tag does not end", "");
		}
		if (!read_tag(reading, open + 2, close)) {
			return false;
		}
		reading->at = close + 2;
	}
	add_text(reading->template, reading->at, (size_t)(end - reading->at));
	return reading->depth == 0 ||
	       wrong(reading, "it does not end: #", reading->template->nodes[reading->open[reading->depth - 1]].name);
}

templates *templates_parse(const template_source *sources, size_t count, char **problem)
{
	templates *made = memory_take(sizeof *made + count * sizeof made->list[0]);

	made->sources = sources;
	made->count = count;
	for (size_t i = 0; i < count; i++) {
		reading reading = {.templates = made, .template = &made->list[i], .source = &sources[i], .at = sources[i].text};
		if (!read_template(&reading)) {
			*problem = reading.problem;
			templates_free(made);
			return NULL;
		}
	}
	return made;
}

void templates_free(templates *templates)
{
	for (size_t i = 0; templates != NULL && i < templates->count; i++) {
		free(templates->list[i].nodes);
	}
	free(templates);
}

/* ---- writing */

typedef struct writing {
	const templates *templates;
	const json_t *contexts[DEPTH_MAX + 1];
	size_t depth, steps;
	size_t partials; /* in each other */
	buffer out;
} writing;

/* The first name is looked up outwards, each further one in the value before. */
static const json_t *look_up(const writing *writing, const char *path)
{
	char name[NAME_BYTES];
	const json_t *found = NULL;
	size_t length = strcspn(path, ".");

	if (length == 0) {
		return path[1] == '\0' ? writing->contexts[writing->depth - 1] : NULL;
	}
	snprintf(name, sizeof name, "%.*s", (int)length, path);
	for (size_t i = writing->depth; i > 0 && found == NULL; i--) {
		found = json_object_get(writing->contexts[i - 1], name);
	}
	while (path[length] == '.' && found != NULL) {
		path += length + 1;
		length = strcspn(path, ".");
		snprintf(name, sizeof name, "%.*s", (int)length, path);
		found = json_object_get(found, name);
	}
	return found;
}

static bool is_true(const json_t *value)
{
	return json_is_true(value) || json_object_size(value) > 0 || json_array_size(value) > 0 ||
	       json_string_length(value) > 0 || (json_is_number(value) && json_number_value(value) != 0);
}

static void write_nodes(writing *writing, const parsed *template, size_t from, size_t to);

static void write_section(writing *writing, const parsed *template, size_t section)
{
	const node *node = &template->nodes[section];
	const json_t *value = look_up(writing, node->name);
	size_t times = json_is_array(value) ? json_array_size(value) : 1;

	if (is_true(value) == (node->kind == NODE_INVERTED)) {
		return;
	}
	if (node->kind == NODE_INVERTED) {
		write_nodes(writing, template, section + 1, node->end);
		return;
	}
	writing->out.failed = ++writing->depth > DEPTH_MAX + 1;
	for (size_t i = 0; i < times && !writing->out.failed; i++) {
		writing->contexts[writing->depth - 1] = json_is_array(value) ? json_array_get(value, i) : value;
		write_nodes(writing, template, section + 1, node->end);
	}
	writing->depth--;
}

static void write_nodes(writing *writing, const parsed *template, size_t from, size_t to)
{
	for (size_t i = from; i < to && !writing->out.failed; i++) {
		const node *node = &template->nodes[i];
		if (++writing->steps > RENDERED_STEPS_MAX) {
			writing->out.failed = true;
		} else if (node->kind == NODE_TEXT) {
			buffer_add(&writing->out, node->text, node->length);
		} else if (node->kind == NODE_VALUE) {
			filter_write(&writing->out, node->filter, look_up(writing, node->name));
		} else if (node->kind == NODE_PARTIAL) {
			const parsed *partial = &writing->templates->list[node->end];
			writing->out.failed = ++writing->partials > DEPTH_MAX;
			write_nodes(writing, partial, 0, partial->count);
			writing->partials--;
		} else {
			write_section(writing, template, i);
			i = node->end - 1;
		}
	}
}

char *templates_render(const templates *templates, const char *name, const json_t *document, size_t *length)
{
	size_t index = find(templates, name);
	writing writing = {
	    .templates = templates, .contexts = {document}, .depth = 1, .out.length_max = RENDERED_BYTES_MAX};

	if (index == templates->count) {
		return NULL;
	}
	write_nodes(&writing, &templates->list[index], 0, templates->list[index].count);
	return buffer_take(&writing.out, length);
}
