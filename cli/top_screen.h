/* SPDX-License-Identifier: PostgreSQL */
/*
 * top_screen.h: what pgonce top shows, as lines of text: from what the database said, the size of the screen, and what was typed. Knows
 * neither the terminal nor the database, and no clock but the database's.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	TOP_FILTER_BYTES = 64,
	TOP_COLUMNS_MAX = 500,
	TOP_LINE_BYTES = 4 * TOP_COLUMNS_MAX + 1,
	TOP_COLUMNS_MIN = 20,
	TOP_ROWS_MIN = 6,
	TOP_ROWS_MAX = 2000 /* and of one snapshot that is printed whole */
};

typedef enum top_style {
	TOP_PLAIN,
	TOP_TITLE,
	TOP_HEADER,
	TOP_SELECTED,
	TOP_ALARM
} top_style;

typedef struct top_line {
	top_style style;
	char text[TOP_LINE_BYTES];
} top_line;

typedef enum top_page {
	TOP_MAIN,
	TOP_INTENT, /* one intent's story */
	TOP_HELP
} top_page;

typedef enum top_sort {
	TOP_BY_RATE,
	TOP_BY_TROUBLE,
	TOP_BY_NAME,
	TOP_SORTS
} top_sort;

typedef struct top_view {
	top_page page;
	top_sort sort;
	bool totals; /* counts since they began, not rates */
	bool paused;
	bool typing;                   /* the filter is being typed */
	char filter[TOP_FILTER_BYTES]; /* scopes that contain it; "": all */
	int selected;                  /* of the running intents that the filter leaves */
	int scrolled;                  /* lines of the story */
	int64_t interval_ms;
	const char *trouble; /* "connection lost, retrying: ..."; NULL: all is well */
	const char *story;   /* of TOP_INTENT, as text by lines; NULL: it is being asked for */
} top_view;

/* Joins an answer of SQL_TOP_RUNNING to one of SQL_TOP: what runs, and what its scopes have besides counts. */
void top_join(json_t *now, const json_t *running);
/* Brings `selected` and `scrolled` back into their bounds. */
void top_settle(top_view *view, const json_t *now, int columns);
/*
 * Writes the lines: exactly `rows` of them, or, where rows is 0, as many as there is to say (at most TOP_ROWS_MAX, which `lines` has room
 * for). `now` and `before` are two answers of the statement SQL_TOP; either may be NULL. Returns how many.
 */
int top_draw(const top_view *view, const json_t *now, const json_t *before, int columns, int rows, top_line *lines);
/* The running intent that is selected: borrowed; NULL where there is none. */
const json_t *top_selected(const top_view *view, const json_t *now);
/*
 * Text for exactly so many columns of a terminal: cut or padded; what is no UTF-8 or would move the cursor is '?'. Returns its bytes.
 */
size_t top_fit(char *to, size_t size, const char *text, int columns, bool to_the_right);
