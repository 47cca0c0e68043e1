/* SPDX-License-Identifier: PostgreSQL */
/*
 * page.h: the console's pages, as a table: path, statement, parameters, template; and for a page
 * with a form, the statement of a POST. page.c checks parameters; SQL gives them their meaning.
 */
#pragma once

#include <stdbool.h>

#include "database.h"
#include "form.h"
#include "sql.h"

typedef enum field_kind {
	FIELD_TEXT,
	FIELD_NUMBER, /* from least to most */
	FIELD_CHOICE, /* one of `choices`, which are separated by '|' */
	FIELD_TIME,   /* as the database reads it */
	FIELD_CURSOR, /* of an earlier answer */
	FIELD_FLAG,   /* 1, or nothing */
	FIELD_MANY    /* may be repeated: a JSON array of texts */
} field_kind;

typedef struct page_parameter {
	const char *name;
	field_kind kind;
	const char *choices;
	long least, most;
	size_t bytes_max; /* 0: PAGE_TEXT_BYTES_MAX */
	bool is_required;
} page_parameter;

enum {
	PAGE_PARAMETERS_MAX = PARAMETERS_MAX,
	PAGE_TEXT_BYTES_MAX = 4096,
	PAGE_ANSWER_BYTES_MAX = 1024 * 1024 /* of the body of an answer that a person gives */
};

/* A statement with its parameters, in their order. */
typedef struct page_query {
	enum sql_id sql;
	const page_parameter *parameters;
	int parameter_count;
} page_query;

typedef struct page {
	const char *path;
	const char *name;    /* of its template */
	const char *section; /* the name of the page that leads to it, or its own */
	page_query get;
	bool is_overview; /* gets the samples' series, and what doctor says */
	/* A form's; without a template the page has no form. */
	page_query post;
	const char *post_template; /* shows a preview, what was done, or why it was not */
	bool is_in_parts;          /* the statement is run until its answer says that it is done */
} page;

const page *page_find(const char *path);
/* All pages that there are. */
extern const page pages[];
extern const int page_count;

/* The statement's values. Free what they hold with page_values_free. */
typedef struct page_values {
	const char *list[PAGE_PARAMETERS_MAX];
	char *made[PAGE_PARAMETERS_MAX];
} page_values;

/* NULL: they are good; else what is wrong, with the parameter's name (free it). */
char *page_check(const page_query *query, const form *form, page_values *values);
/* Puts another value in the place of the parameter's; takes the text. */
void page_values_set(const page_query *query, page_values *values, const char *name, char *value);
void page_values_free(page_values *values);
/*
 * The parameters that can be what this SQLSTATE means, as "parameter 'since': "; "" if it is not
 * about one (free it).
 */
char *page_blame(const page_query *query, const form *form, const char *sqlstate);
