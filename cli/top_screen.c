/* SPDX-License-Identifier: PostgreSQL */
/* top_screen.c: see top_screen.h. */
#include "top_screen.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "moment.h"

enum {
	HEAD_ROWS = 3,
	FOOT_ROWS = 1,
	SECTIONS = 4,
	NUMBER_COLUMNS = 8,
	NAME_COLUMNS_MIN = 12,
	CELL_BYTES = 64
};

/* ---- text of a terminal */

/* One character of UTF-8: its bytes, or 0 where it is none. */
static size_t decode(const unsigned char *at, uint32_t *character)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t length = at[0] < 0x80 ? 1 : at[0] >= 0xc2 && at[0] < 0xe0 ? 2 : (at[0] & 0xf0) == 0xe0 ? 3 : 0;

	length = at[0] >= 0xf0 && at[0] <= 0xf4 ? 4 : length;
	if (length == 0) {
		return 0;
	}
	*character = length == 1 ? at[0] : at[0] & (0xffu >> (length + 1));
	for (size_t i = 1; i < length; i++) {
		if ((at[i] & 0xc0) != 0x80) {
			return 0;
		}
		*character = *character << 6 | (at[i] & 0x3f);
	}
	bool surrogate = *character >= 0xd800 && *character <= 0xdfff;
	return (length > 1 && *character < least[length]) || surrogate || *character > 0x10ffff ? 0 : length;
}

/* How many columns it takes; -1: it moves the cursor, or turns the direction of what follows. A table of its own, so that a screen is the same
 * whatever the locale is. */
static int columns_of(uint32_t c)
{
	static const struct {
		uint32_t first, last;
		int columns;
	} ranges[] = {
	    {0x00, 0x1f, -1},      {0x7f, 0x9f, -1},      {0xad, 0xad, -1},      {0x0300, 0x036f, 0},
	    {0x061c, 0x061c, -1},  {0x0483, 0x0489, 0},   {0x0591, 0x05bd, 0},   {0x064b, 0x065f, 0},
	    {0x1100, 0x115f, 2},   {0x1ab0, 0x1aff, 0},   {0x1dc0, 0x1dff, 0},   {0x200b, 0x200f, -1},
	    {0x2028, 0x202e, -1},  {0x2060, 0x206f, -1},  {0x20d0, 0x20ff, 0},   {0x2e80, 0x303e, 2},
	    {0x3041, 0xa4cf, 2},   {0xac00, 0xd7a3, 2},   {0xe000, 0xf8ff, -1},  {0xf900, 0xfaff, 2},
	    {0xfe00, 0xfe0f, 0},   {0xfe20, 0xfe2f, 0},   {0xfe30, 0xfe6f, 2},   {0xfeff, 0xfeff, -1},
	    {0xff00, 0xff60, 2},   {0xffe0, 0xffe6, 2},   {0xfff0, 0xfffb, -1},  {0x1f300, 0x1f64f, 2},
	    {0x1f680, 0x1f6ff, 2}, {0x1f900, 0x1faff, 2}, {0x20000, 0x3fffd, 2}, {0xe0000, 0x10ffff, -1},
	};

	for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
		if (c >= ranges[i].first && c <= ranges[i].last) {
			return ranges[i].columns;
		}
	}
	return 1;
}

/* One character made safe: its bytes and columns, and how many bytes of the text it stands for. */
typedef struct glyph {
	const char *bytes;
	size_t length;
	size_t from;
	int columns;
} glyph;

static glyph next_glyph(const char *text)
{
	uint32_t character = 0;
	size_t length = decode((const unsigned char *)text, &character);
	int columns = length == 0 ? -1 : columns_of(character);

	return columns < 0 ? (glyph){.bytes = "?", .length = 1, .from = length == 0 ? 1 : length, .columns = 1}
	                   : (glyph){.bytes = text, .length = length, .from = length, .columns = columns};
}

static int width_of(const char *text)
{
	int width = 0;

	while (*text != '\0') {
		glyph one = next_glyph(text);
		width += one.columns;
		text += one.from;
	}
	return width;
}

size_t top_fit(char *to, size_t size, const char *text, int columns, bool to_the_right)
{
	int width = width_of(text);
	int room = width > columns ? columns - 1 : columns; /* for the mark of what is cut */
	int used = 0;
	size_t length = 0;

	for (int i = width; to_the_right && i < columns && length + 1 < size; i++, used++) {
		to[length++] = ' ';
	}
	while (*text != '\0') {
		glyph one = next_glyph(text);
		if (used + one.columns > room || length + one.length >= size) {
			break;
		}
		memcpy(to + length, one.bytes, one.length);
		length += one.length;
		used += one.columns;
		text += one.from;
	}
	if (*text != '\0' && used < columns && length + 1 < size) {
		to[length++] = '~';
		used++;
	}
	for (; used < columns && length + 1 < size; used++) {
		to[length++] = ' ';
	}
	to[length] = '\0';
	return length;
}

/* ---- what is in the answer */

static const char *text_of(const json_t *object, const char *member)
{
	const char *text = json_string_value(json_object_get(object, member));
	return text != NULL ? text : "";
}

static double number_of(const json_t *object, const char *member)
{
	return json_number_value(json_object_get(object, member));
}

static bool is_known(const json_t *object, const char *member)
{
	return json_is_number(json_object_get(object, member));
}

static bool passes(const top_view *view, const char *scope)
{
	return view->filter[0] == '\0' || strcasestr(scope, view->filter) != NULL;
}

const json_t *top_selected(const top_view *view, const json_t *now)
{
	const json_t *row = NULL;
	size_t index = 0;
	int nth = 0;

	json_array_foreach(json_object_get(now, "running"), index, row)
	{
		if (passes(view, text_of(row, "scope")) && nth++ == view->selected) {
			return row;
		}
	}
	return NULL;
}

static int count_running(const top_view *view, const json_t *now)
{
	const json_t *row = NULL;
	size_t index = 0;
	int count = 0;

	json_array_foreach(json_object_get(now, "running"), index, row)
	{
		count += passes(view, text_of(row, "scope"));
	}
	return count;
}

/* The bytes of the text's first line on a screen, and of what ends it. */
static size_t first_line(const char *text, int columns, size_t *end)
{
	size_t length = 0;
	int used = 0;

	while (text[length] != '\0' && text[length] != '\n') {
		glyph one = next_glyph(text + length);
		if (used + one.columns > columns) {
			break;
		}
		used += one.columns;
		length += one.from;
	}
	*end = text[length] == '\n';
	return length;
}

static int count_lines(const char *text, int columns)
{
	int count = 0;
	size_t end = 0;

	for (; text != NULL && *text != '\0'; count++) {
		text += first_line(text, columns, &end);
		text += end;
	}
	return count;
}

void top_join(json_t *now, const json_t *running)
{
	static const char *const members[] = {"in_flight", "stale", "in_doubt"};
	json_t *scopes = json_object_get(now, "scopes"), *scope = NULL;
	const json_t *live = NULL;
	size_t index = 0, other = 0;
	json_int_t sums[] = {0, 0, 0};

	if (scopes == NULL) {
		return; /* the other answer is not there yet */
	}
	json_object_set(now, "running", json_object_get(running, "running"));
	json_array_foreach(scopes, index, scope)
	{
		for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
			json_object_set_new(scope, members[i], json_integer(0));
		}
	}
	json_array_foreach(json_object_get(running, "scopes"), other, live)
	{
		json_t *row = NULL;
		json_array_foreach(scopes, index, scope)
		{
			row = strcmp(text_of(scope, "scope"), text_of(live, "scope")) == 0 ? scope : row;
		}
		if (row == NULL) {
			json_array_append_new(scopes, row = json_pack("{s:s}", "scope", text_of(live, "scope")));
		}
		for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
			json_object_set(row, members[i], json_object_get(live, members[i]));
			sums[i] += json_integer_value(json_object_get(live, members[i]));
		}
	}
	for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
		json_object_set_new(now, members[i], json_integer(sums[i]));
	}
}

void top_settle(top_view *view, const json_t *now, int columns)
{
	int running = count_running(view, now);
	int lines = count_lines(view->story, columns < TOP_COLUMNS_MIN ? TOP_COLUMNS_MIN : columns);

	view->selected = view->selected >= running ? running - 1 : view->selected;
	view->selected = view->selected < 0 ? 0 : view->selected;
	view->scrolled = view->scrolled >= lines ? lines - 1 : view->scrolled;
	view->scrolled = view->scrolled < 0 ? 0 : view->scrolled;
}

/* ---- cells */

static void span_cell(double seconds, char *text, size_t size)
{
	moment_span((int64_t)(seconds * 1e6), text, size);
	char *blank = strchr(text, ' ');
	if (blank != NULL) {
		*blank = '\0'; /* the larger unit is enough */
	}
}

static void bytes_cell(double bytes, char *text, size_t size)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
	size_t unit = 0;

	for (; bytes >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++) {
		bytes /= 1024;
	}
	snprintf(text, size, bytes < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

static void count_cell(double count, char *text, size_t size)
{
	if (count >= 1e9) {
		snprintf(text, size, "%.1fG", count / 1e9);
	} else if (count >= 1e7) {
		snprintf(text, size, "%.1fM", count / 1e6);
	} else {
		snprintf(text, size, "%.0f", count);
	}
}

static void rate_cell(double rate, char *text, size_t size)
{
	snprintf(text, size, rate >= 100 ? "%.0f" : "%.1f", rate);
}

/* ---- lines */

typedef struct screen {
	const top_view *view;
	const json_t *now;
	const json_t *before;
	top_line *lines;
	int columns;
	int rows; /* 0: as many as there are */
	int used;
} screen;

static void put(screen *screen, top_style style, const char *text)
{
	int limit = screen->rows > 0 ? screen->rows : TOP_ROWS_MAX;

	if (screen->used < limit) {
		top_line *line = &screen->lines[screen->used++];
		line->style = style;
		size_t length = top_fit(line->text, sizeof line->text, text, screen->columns, false);
		if (style == TOP_PLAIN) {
			while (length > 0 && line->text[length - 1] == ' ') {
				line->text[--length] = '\0';
			}
		}
	}
}

/* A row that is being made of cells. */
typedef struct row {
	char text[TOP_LINE_BYTES];
	size_t length;
} row;

static void add(row *row, const char *text, int columns, bool to_the_right)
{
	row->length += top_fit(row->text + row->length, sizeof row->text - row->length, text, columns, to_the_right);
}

static void add_number(row *row, const char *text)
{
	add(row, text, NUMBER_COLUMNS, true);
}

/* ---- head and foot */

static void draw_head(screen *screen)
{
	char text[TOP_LINE_BYTES], cell[CELL_BYTES], clock[CELL_BYTES];
	const json_t *now = screen->now;
	row title = {.length = 0};

	moment_shown(text_of(now, "now"), clock, sizeof clock);
	snprintf(text, sizeof text, "pgonce top  %s on PostgreSQL %s as %s", text_of(now, "database"),
	         text_of(now, "server"), text_of(now, "role"));
	/* The clock is the last to go. */
	int clock_columns = screen->columns >= 50 ? 20 : 0;
	add(&title, text, screen->columns - clock_columns, false);
	clock[19] = '\0'; /* whole seconds */
	add(&title, clock, clock_columns, true);
	put(screen, TOP_TITLE, title.text);

	int length = 0;
	if (is_known(now, "keeper_seconds")) {
		span_cell(number_of(now, "keeper_seconds"), cell, sizeof cell);
		length = snprintf(text, sizeof text, "keeper %s ago", cell);
	} else {
		length = snprintf(text, sizeof text, "keeper: none has run");
	}
	if (text_of(now, "keeper_failing")[0] != '\0') {
		length +=
		    snprintf(text + length, sizeof text - (size_t)length, ", failing: %.60s", text_of(now, "keeper_failing"));
	}
	length += snprintf(text + length, sizeof text - (size_t)length, "   days ahead %.0f", number_of(now, "days_ahead"));
	span_cell(number_of(now, "oldest_transaction_seconds"), cell, sizeof cell);
	length += snprintf(text + length, sizeof text - (size_t)length, "   oldest transaction %s", cell);
	if (text_of(now, "held")[0] != '\0') {
		snprintf(text + length, sizeof text - (size_t)length, "   held: %.60s", text_of(now, "held"));
	}
	bool alarm = number_of(now, "days_ahead") < 1 || text_of(now, "keeper_failing")[0] != '\0';
	put(screen, alarm ? TOP_ALARM : TOP_PLAIN, text);

	span_cell(number_of(now, "lag_seconds"), clock, sizeof clock);
	cell[0] = '\0';
	if (number_of(now, "pending") > 0) {
		snprintf(cell, sizeof cell, " (%.20s)", clock);
	}
	snprintf(text, sizeof text,
	         "running %.0f  stale %.0f  in doubt %.0f  events %.0f waiting%s, %.0f parked, %.0f dead",
	         number_of(now, "in_flight"), number_of(now, "stale"), number_of(now, "in_doubt"),
	         number_of(now, "pending"), cell, number_of(now, "parked"), number_of(now, "dead"));
	alarm = number_of(now, "in_doubt") > 0 || number_of(now, "dead") > 0;
	put(screen, alarm ? TOP_ALARM : TOP_PLAIN, text);
}

static void draw_foot(screen *screen)
{
	static const char *const sorts[] = {"rate", "trouble", "name"};
	const top_view *view = screen->view;
	char text[TOP_LINE_BYTES];

	if (view->typing) {
		snprintf(text, sizeof text, "scopes that contain: %s_   (Enter: done, Esc: all)", view->filter);
	} else if (view->trouble != NULL) {
		snprintf(text, sizeof text, "%s", view->trouble);
	} else if (view->page == TOP_INTENT) {
		snprintf(text, sizeof text, "up/down: scroll  b: back  q: quit");
	} else {
		snprintf(text, sizeof text,
		         "%sby %s%s%s  Enter: story  s: sort  f: filter  t: totals  p: pause  h: help  q: quit",
		         view->paused ? "PAUSED  " : "", sorts[view->sort], view->filter[0] != '\0' ? "  filter: " : "",
		         view->filter);
	}
	put(screen, view->trouble != NULL && !view->typing ? TOP_ALARM : TOP_TITLE, text);
}

/* ---- sections */

/* In the order of the columns, after the scope. */
static const struct {
	const char *member; /* verdicts of once.counts */
	const char *title;
	int columns;
} verdicts[] = {
    {"new", "NEW", 7},         {"replay", "REPLAY", 7},     {"active", "ACTIVE", 7},
    {"refused", "REFUSED", 8}, {"mismatch", "MISMATCH", 9},
};

enum {
	VERDICTS = sizeof verdicts / sizeof verdicts[0],
	STATES = 3
};

/* And what is stored now. */
static const struct {
	const char *member;
	const char *title;
	int columns;
} states[STATES] = {{"in_flight", "RUNNING", 8}, {"stale", "STALE", 6}, {"in_doubt", "DOUBT", 6}};

static const json_t *scope_before(const screen *screen, const char *scope)
{
	const json_t *other = NULL;
	size_t index = 0;

	json_array_foreach(json_object_get(screen->before, "scopes"), index, other)
	{
		if (strcmp(text_of(other, "scope"), scope) == 0) {
			return other;
		}
	}
	return NULL;
}

static double seconds_between(const screen *screen)
{
	return number_of(screen->now, "epoch") - number_of(screen->before, "epoch");
}

/* Events a second since the answer before; a count that was reset begins again. */
static double rate_of(const screen *screen, const json_t *scope, const char *member)
{
	double seconds = seconds_between(screen);
	const json_t *other = scope_before(screen, text_of(scope, "scope"));
	double gained = number_of(scope, member) - number_of(other, member);

	gained = gained < 0 ? number_of(scope, member) : gained;
	return seconds > 0 ? gained / seconds : 0;
}

typedef struct ranked {
	const json_t *scope;
	double by;
} ranked;

static int compare(const void *left, const void *right)
{
	const ranked *a = left, *b = right;

	if (a->by != b->by) {
		return a->by < b->by ? 1 : -1;
	}
	return strcmp(text_of(a->scope, "scope"), text_of(b->scope, "scope"));
}

/* The scopes that the filter leaves, in order. The caller frees. */
static ranked *rank_scopes(const screen *screen, int *count)
{
	const json_t *scopes = json_object_get(screen->now, "scopes");
	ranked *all = calloc(json_array_size(scopes) + 1, sizeof *all);
	const json_t *scope = NULL;
	size_t index = 0;

	*count = 0;
	json_array_foreach(scopes, index, scope)
	{
		if (all == NULL || !passes(screen->view, text_of(scope, "scope"))) {
			continue;
		}
		double by = 0;
		for (int i = 0; screen->view->sort == TOP_BY_RATE && i < VERDICTS; i++) {
			by += screen->view->totals || screen->before == NULL ? number_of(scope, verdicts[i].member)
			                                                     : rate_of(screen, scope, verdicts[i].member);
		}
		if (screen->view->sort == TOP_BY_TROUBLE) {
			by = 1e6 * number_of(scope, "in_doubt") + number_of(scope, "stale");
		}
		all[(*count)++] = (ranked){.scope = scope, .by = by};
	}
	if (all != NULL) {
		qsort(all, (size_t)*count, sizeof *all, compare);
	}
	return all;
}

/* "SCOPE (3 of 12)" where not all are shown. */
static void section_title(char *title, size_t size, const char *name, int shown, int count)
{
	if (shown < count) {
		snprintf(title, size, "%s (%d of %d)", name, shown, count);
	} else {
		snprintf(title, size, "%s", name);
	}
}

/* What is left for the name. */
static int scope_columns(int columns)
{
	for (int i = 0; i < VERDICTS; i++) {
		columns -= verdicts[i].columns;
	}
	for (int i = 0; i < STATES; i++) {
		columns -= states[i].columns;
	}
	return columns < NAME_COLUMNS_MIN ? NAME_COLUMNS_MIN : columns;
}

static void draw_scope(screen *screen, const json_t *scope)
{
	row line = {.length = 0};
	char cell[CELL_BYTES];
	const char *name = text_of(scope, "scope");

	add(&line, name[0] != '\0' ? name : "(no policy of its own)", scope_columns(screen->columns), false);
	for (int i = 0; i < VERDICTS; i++) {
		if (screen->view->totals && is_known(scope, verdicts[i].member)) {
			count_cell(number_of(scope, verdicts[i].member), cell, sizeof cell);
		} else if (screen->before == NULL || !is_known(scope, verdicts[i].member)) {
			snprintf(cell, sizeof cell, "-"); /* counted with others, or not yet twice */
		} else {
			rate_cell(rate_of(screen, scope, verdicts[i].member), cell, sizeof cell);
		}
		add(&line, cell, verdicts[i].columns, true);
	}
	for (int i = 0; i < STATES; i++) {
		count_cell(number_of(scope, states[i].member), cell, sizeof cell);
		add(&line, cell, states[i].columns, true);
	}
	put(screen, number_of(scope, "in_doubt") > 0 ? TOP_ALARM : TOP_PLAIN, line.text);
}

static void draw_scopes(screen *screen, int rows)
{
	int count = 0;
	ranked *scopes = rank_scopes(screen, &count);
	char cell[CELL_BYTES];
	row header = {.length = 0};

	section_title(cell, sizeof cell, screen->view->totals ? "SCOPE" : "SCOPE, per s", rows < count ? rows : count,
	              count);
	add(&header, cell, scope_columns(screen->columns), false);
	for (int i = 0; i < VERDICTS; i++) {
		add(&header, verdicts[i].title, verdicts[i].columns, true);
	}
	for (int i = 0; i < STATES; i++) {
		add(&header, states[i].title, states[i].columns, true);
	}
	put(screen, TOP_HEADER, header.text);
	for (int nth = 0; nth < count && nth < rows; nth++) {
		draw_scope(screen, scopes[nth].scope);
	}
	free(scopes);
}

static void draw_intent(screen *screen, const json_t *intent, int first, bool selected)
{
	row line = {.length = 0};
	char cell[CELL_BYTES], name[TOP_LINE_BYTES];
	double lease = number_of(intent, "lease_seconds");

	snprintf(name, sizeof name, "%s%.300s %.300s", selected ? "> " : "  ", text_of(intent, "scope"),
	         text_of(intent, "key"));
	add(&line, name, first, false);
	span_cell(number_of(intent, "age_seconds"), cell, sizeof cell);
	add_number(&line, cell);
	span_cell(lease, cell + 1, sizeof cell - 1);
	cell[0] = lease < 0 ? '-' : ' ';
	add_number(&line, cell);
	count_cell(number_of(intent, "attempts"), cell, sizeof cell);
	add_number(&line, cell);
	add(&line, "  ", 2, false);
	add(&line, text_of(intent, "owner"), 18, false);
	put(screen, selected ? TOP_SELECTED : lease < 0 ? TOP_ALARM : TOP_PLAIN, line.text);
}

static void draw_running(screen *screen, int rows)
{
	const json_t *intent = NULL;
	size_t index = 0;
	int count = count_running(screen->view, screen->now);
	int first = screen->columns - 3 * NUMBER_COLUMNS - 20;
	int from = screen->view->selected >= rows ? screen->view->selected - rows + 1 : 0;
	char cell[CELL_BYTES];
	row header = {.length = 0};
	int nth = 0;

	first = first < NAME_COLUMNS_MIN ? NAME_COLUMNS_MIN : first;
	section_title(cell, sizeof cell, "RUNNING LONGEST", rows < count ? rows : count, count);
	add(&header, cell, first, false);
	add_number(&header, "AGE");
	add_number(&header, "LEASE");
	add_number(&header, "TRIES");
	add(&header, "  OWNER", 20, false);
	put(screen, TOP_HEADER, header.text);
	json_array_foreach(json_object_get(screen->now, "running"), index, intent)
	{
		if (!passes(screen->view, text_of(intent, "scope"))) {
			continue;
		}
		if (nth >= from && nth < from + rows) {
			draw_intent(screen, intent, first, screen->rows > 0 && nth == screen->view->selected);
		}
		nth++;
	}
}

static void draw_relays(screen *screen, int rows)
{
	const json_t *relay = NULL;
	size_t index = 0;
	int count = (int)json_array_size(json_object_get(screen->now, "relays"));
	int first = screen->columns - 4 * NUMBER_COLUMNS;
	char cell[TOP_LINE_BYTES];
	row header = {.length = 0};
	static const char *const members[] = {"pending", "parked", "dead"};

	first = first < NAME_COLUMNS_MIN ? NAME_COLUMNS_MIN : first;
	section_title(cell, sizeof cell, "RELAY, TOPIC", rows < count ? rows : count, count);
	add(&header, cell, first, false);
	add_number(&header, "WAITING");
	add_number(&header, "PARKED");
	add_number(&header, "DEAD");
	add_number(&header, "OLDEST");
	put(screen, TOP_HEADER, header.text);
	json_array_foreach(json_object_get(screen->now, "relays"), index, relay)
	{
		row line = {.length = 0};
		if ((int)index >= rows) {
			break;
		}
		snprintf(cell, sizeof cell, "%.300s %.300s", text_of(relay, "relay"), text_of(relay, "topic"));
		add(&line, cell, first, false);
		for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
			count_cell(number_of(relay, members[i]), cell, sizeof cell);
			add_number(&line, cell);
		}
		span_cell(number_of(relay, "lag_seconds"), cell, sizeof cell);
		add_number(&line, is_known(relay, "lag_seconds") ? cell : "-");
		put(screen, number_of(relay, "dead") > 0 ? TOP_ALARM : TOP_PLAIN, line.text);
	}
}

static void draw_partitions(screen *screen, int rows)
{
	const json_t *partition = NULL;
	size_t index = 0;
	int count = (int)json_array_size(json_object_get(screen->now, "partitions"));
	int first = screen->columns - 2 * NUMBER_COLUMNS - 4;
	char cell[CELL_BYTES];
	row header = {.length = 0};

	first = first < NAME_COLUMNS_MIN ? NAME_COLUMNS_MIN : first;
	section_title(cell, sizeof cell, "PARTITION", rows < count ? rows : count, count);
	add(&header, cell, first, false);
	add(&header, "DAY", NUMBER_COLUMNS + 4, true);
	add_number(&header, "SIZE");
	put(screen, TOP_HEADER, header.text);
	json_array_foreach(json_object_get(screen->now, "partitions"), index, partition)
	{
		row line = {.length = 0};
		if ((int)index >= rows) {
			break;
		}
		add(&line, text_of(partition, "table"), first, false);
		add(&line, text_of(partition, "day"), NUMBER_COLUMNS + 4, true);
		bytes_cell(number_of(partition, "bytes"), cell, sizeof cell);
		add_number(&line, cell);
		put(screen, TOP_PLAIN, line.text);
	}
}

/* ---- pages */

/* How many rows each section gets below its header: a few each, and what is left to those who want more, in turn. */
static void share(const int *wanted, int rows, int *given)
{
	static const int few[SECTIONS] = {3, 3, 1, 1};
	static const int turn[SECTIONS] = {2, 3, 1, 1};
	int left = rows - SECTIONS;

	for (int i = 0; i < SECTIONS; i++) {
		given[i] = wanted[i] < few[i] ? wanted[i] : few[i];
		given[i] = given[i] > left ? (left > 0 ? left : 0) : given[i];
		left -= given[i];
	}
	for (bool any = true; any && left > 0;) {
		any = false;
		for (int i = 0; i < SECTIONS && left > 0; i++) {
			for (int n = 0; n < turn[i] && left > 0 && given[i] < wanted[i]; n++) {
				given[i]++;
				left--;
				any = true;
			}
		}
	}
}

static void draw_main(screen *screen)
{
	void (*const sections[SECTIONS])(struct screen *, int) = {draw_scopes, draw_running, draw_relays, draw_partitions};
	int wanted[SECTIONS], given[SECTIONS];
	int scopes = 0;

	draw_head(screen);
	free(rank_scopes(screen, &scopes));
	wanted[0] = scopes;
	wanted[1] = count_running(screen->view, screen->now);
	wanted[2] = (int)json_array_size(json_object_get(screen->now, "relays"));
	wanted[3] = (int)json_array_size(json_object_get(screen->now, "partitions"));
	share(wanted, screen->rows > 0 ? screen->rows - HEAD_ROWS - FOOT_ROWS : TOP_ROWS_MAX - HEAD_ROWS, given);
	for (int i = 0; i < SECTIONS; i++) {
		if (screen->rows == 0 || screen->used < screen->rows - FOOT_ROWS) {
			sections[i](screen, given[i]);
		}
	}
}

/* Long lines go on in the next. */
static void draw_text(screen *screen, const char *text, int skipped)
{
	char line[TOP_LINE_BYTES];
	size_t end = 0;

	for (int nth = 0; *text != '\0'; nth++) {
		size_t length = first_line(text, screen->columns, &end);
		if (nth >= skipped && screen->used < screen->rows - FOOT_ROWS) {
			snprintf(line, sizeof line, "%.*s", (int)length, text);
			put(screen, TOP_PLAIN, line);
		}
		text += length + end;
	}
}

static const char help[] = "pgonce top shows what the contract does in this database.\n"
                           "\n"
                           "up, down, j, k   choose a running intent\n"
                           "Enter            its story; b, Esc or left: back\n"
                           "s                sort scopes by rate, by trouble (in doubt, stale), by name\n"
                           "t                rates, or totals since counting began\n"
                           "f, /             only scopes that contain a text\n"
                           "p, space         pause, and go on\n"
                           "r                ask the database now\n"
                           "h, ?             this page\n"
                           "q                quit\n"
                           "\n"
                           "Scopes without a policy of their own are counted together. LEASE below zero: the\n"
                           "attempt is stale. pgonce stuck lists all of them; pgonce in-doubt what is to be\n"
                           "decided; pgonce outbox list what relays have parked.\n";

int top_draw(const top_view *view, const json_t *now, const json_t *before, int columns, int rows, top_line *lines)
{
	screen screen = {.view = view,
	                 .now = now,
	                 .before = before,
	                 .lines = lines,
	                 .columns = columns < TOP_COLUMNS_MIN   ? TOP_COLUMNS_MIN
	                            : columns > TOP_COLUMNS_MAX ? TOP_COLUMNS_MAX
	                                                        : columns,
	                 .rows = rows > TOP_ROWS_MAX ? TOP_ROWS_MAX : rows};

	if (view->page == TOP_HELP) {
		draw_text(&screen, help, 0);
	} else if (view->page == TOP_INTENT) {
		draw_text(&screen, view->story != NULL ? view->story : "asking for its story ...\n", view->scrolled);
	} else if (now == NULL) {
		put(&screen, TOP_TITLE, "pgonce top: waiting for the first answer of the database");
	} else {
		draw_main(&screen);
	}
	if (rows > 0) {
		screen.used = screen.used > screen.rows - FOOT_ROWS ? screen.rows - FOOT_ROWS : screen.used;
		while (screen.used < screen.rows - FOOT_ROWS) {
			put(&screen, TOP_PLAIN, "");
		}
		draw_foot(&screen);
	}
	return screen.used;
}
