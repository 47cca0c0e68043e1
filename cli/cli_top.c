/* SPDX-License-Identifier: PostgreSQL */
/*
 * cli_top.c: pgonce top: what the contract does, live. One loop waits for keys, signals and the database at once: no answer is ever waited
 * for while a key is. What is shown is in top_screen.c, the terminal in terminal.c, the connection in top_link.c.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parked.h"
#include "story.h"
#include "terminal.h"
#include "top_link.h"
#include "top_screen.h"

enum {
	INTERVAL_MS = 2000,
	PAGE_ROWS = 10,
	SLEEP_MS = 1000, /* at most, so that what goes on for long is told by the second */
	REST = 10        /* a question that takes long is asked again after that many times as long */
};

typedef struct top {
	const cli_invocation *invocation;
	top_view view;
	top_link *link;
	top_link *scan_link; /* for what takes long, so that a story is not behind it */
	json_t *running;     /* its last answer */
	json_t *now;
	json_t *before;
	json_t *chosen; /* the intent whose story is shown */
	char *story;
	char *trouble;
	top_line *lines;
	int64_t due_at_ms; /* the next question, and the next scan */
	int64_t scan_due_at_ms;
	bool ask_now;
	bool changed; /* what is on the screen is not what should be */
	bool quit;
} top;

/* ---- answers */

static json_t *read_json(const PGresult *answer)
{
	return PQntuples(answer) == 1 ? json_loads(PQgetvalue(answer, 0, 0), 0, NULL) : NULL;
}

static void settle(top *top)
{
	int columns = 0, rows = 0;

	terminal_size(&columns, &rows);
	top_settle(&top->view, top->now, columns);
}

static void take_snapshot(top *top, const PGresult *answer)
{
	json_t *fresh = read_json(answer);

	if (fresh == NULL) {
		return;
	}
	json_decref(top->before);
	top->before = top->now;
	top->now = fresh;
	top_join(top->now, top->running);
	settle(top);
}

static void take_running(top *top, const PGresult *answer)
{
	json_t *fresh = read_json(answer);

	if (fresh == NULL) {
		return;
	}
	json_decref(top->running);
	top->running = fresh;
	top_join(top->now, top->running);
	settle(top);
}

static void take_story(top *top, const PGresult *answer)
{
	story story;
	size_t length = 0;

	free(top->story);
	top->story = NULL;
	if (story_read(answer, &story) && story.told != NULL) {
		FILE *out = open_memstream(&top->story, &length);
		if (out != NULL) {
			story_tell(out, story.told);
			fclose(out);
		}
	} else {
		top->story = cli_duplicate("there is no such intent any more\n");
	}
	story_free(&story);
	top->view.story = top->story;
	settle(top);
}

/* Asks for what is wanted next, where nothing is being asked. */
static void ask(top *top)
{
	int64_t now_ms = top_link_clock_ms();
	bool may = !top->view.paused || top->now == NULL || top->ask_now;

	if (top_link_is_idle(top->scan_link) && may && (top->ask_now || now_ms >= top->scan_due_at_ms)) {
		top_link_ask(top->scan_link, SQL_TOP_RUNNING, 0, NULL);
	}
	if (!top_link_is_idle(top->link)) {
		return;
	}
	if (top->view.page == TOP_INTENT && top->view.story == NULL) {
		const char *parameters[] = {parked_text(top->chosen, "scope"), parked_text(top->chosen, "key"),
		                            parked_text(top->chosen, "tenant")};
		top_link_ask(top->link, SQL_STORY, 3, parameters);
	} else if (may && (top->ask_now || now_ms >= top->due_at_ms)) {
		top->ask_now = false;
		top_link_ask(top->link, SQL_TOP, 0, NULL);
	}
}

/* When a question that took so long is asked again: it must not be what keeps the server busy. */
static int64_t next_time(const top *top, int64_t took_ms)
{
	return top_link_clock_ms() +
	       (REST * took_ms > top->view.interval_ms ? REST * took_ms : top->view.interval_ms - took_ms);
}

static void take_answers(top *top, top_link *link)
{
	enum sql_id id = SQL_TOP;
	int64_t took_ms = 0;
	PGresult *answer = NULL;

	while ((answer = top_link_take(link, &id, &took_ms)) != NULL) {
		if (id == SQL_TOP) {
			top->due_at_ms = next_time(top, took_ms);
		} else if (id == SQL_TOP_RUNNING) {
			top->scan_due_at_ms = next_time(top, took_ms);
		}
		if (PQresultStatus(answer) != PGRES_TUPLES_OK) {
			const char *message = PQresultErrorField(answer, PG_DIAG_MESSAGE_PRIMARY);
			top_link_note(link, message != NULL ? message : "the database gave no answer");
			if (id == SQL_STORY) {
				top->view.page = TOP_MAIN;
			}
		} else if (id == SQL_STORY) {
			take_story(top, answer);
		} else if (id == SQL_TOP_RUNNING) {
			take_running(top, answer);
		} else {
			take_snapshot(top, answer);
		}
		PQclear(answer);
		top->changed = true;
	}
}

static void look_for_trouble(top *top)
{
	char *trouble = top_link_trouble(top->link);

	trouble = trouble != NULL ? trouble : top_link_trouble(top->scan_link);
	if ((trouble == NULL) != (top->trouble == NULL) || (trouble != NULL && strcmp(trouble, top->trouble) != 0)) {
		top->changed = true;
	}
	free(top->trouble);
	top->trouble = trouble;
	top->view.trouble = trouble;
}

/* ---- keys */

static void type_filter(top *top, int key)
{
	size_t length = strlen(top->view.filter);

	if (key == '\r' || key == '\n') {
		top->view.typing = false;
	} else if (key == KEY_ESCAPE) {
		top->view.typing = false;
		top->view.filter[0] = '\0';
	} else if ((key == 0x7f || key == '\b') && length > 0) {
		do {
			top->view.filter[--length] = '\0';
		} while (length > 0 && ((unsigned char)top->view.filter[length - 1] & 0xc0) == 0x80);
	} else if (key >= ' ' && key < 256 && key != 0x7f && length + 1 < TOP_FILTER_BYTES) {
		top->view.filter[length] = (char)key;
		top->view.filter[length + 1] = '\0';
	}
	top->view.selected = 0;
}

static void open_intent(top *top)
{
	const json_t *intent = top_selected(&top->view, top->now);

	if (intent == NULL) {
		return;
	}
	json_decref(top->chosen);
	top->chosen = json_deep_copy(intent);
	free(top->story);
	top->story = NULL;
	top->view.story = NULL;
	top->view.scrolled = 0;
	top->view.page = TOP_INTENT;
}

static void move(top *top, int steps)
{
	if (top->view.page == TOP_INTENT) {
		top->view.scrolled += steps;
	} else {
		top->view.selected += steps;
	}
	settle(top);
}

static void press_in_list(top *top, int key)
{
	switch (key) {
	case '\r':
	case '\n':
	case KEY_RIGHT:
		open_intent(top);
		break;
	case 's':
		top->view.sort = (top->view.sort + 1) % TOP_SORTS;
		break;
	case 't':
		top->view.totals = !top->view.totals;
		break;
	case 'f':
	case '/':
		top->view.typing = true;
		break;
	case 'p':
	case ' ':
		top->view.paused = !top->view.paused;
		break;
	case 'r':
		top->ask_now = true;
		break;
	case 'h':
	case '?':
		top->view.page = TOP_HELP;
		break;
	default:
		break;
	}
}

static void press(top *top, int key)
{
	top->changed = true;
	if (top->view.typing) {
		type_filter(top, key);
		return;
	}
	switch (key) {
	case 'q':
	case 'Q':
		top->quit = true;
		return;
	case KEY_UP:
	case 'k':
		move(top, -1);
		return;
	case KEY_DOWN:
	case 'j':
		move(top, 1);
		return;
	case KEY_PAGE_UP:
		move(top, -PAGE_ROWS);
		return;
	case KEY_PAGE_DOWN:
		move(top, PAGE_ROWS);
		return;
	default:
		break;
	}
	if (top->view.page == TOP_MAIN) {
		press_in_list(top, key);
	} else if (key == 'b' || key == KEY_ESCAPE || key == KEY_LEFT || key == 'h' || key == '?' || key == 0x7f) {
		top->view.page = TOP_MAIN;
	} else if (key == 'r' && top->view.page == TOP_INTENT) {
		top->view.story = NULL;
	}
}

/* ---- the loop */

static void draw(top *top)
{
	int columns = 0, rows = 0;

	terminal_size(&columns, &rows);
	terminal_draw(top->lines, top_draw(&top->view, top->now, top->before, columns, rows, top->lines));
	top->changed = false;
}

/* Until something happens, at the latest when the next question is due. */
static void wait_for_news(top *top)
{
	struct pollfd waited[4] = {
	    {.fd = STDIN_FILENO, .events = POLLIN}, {.fd = terminal_signal_fd(), .events = POLLIN}, {.fd = -1}, {.fd = -1}};
	int64_t now_ms = top_link_clock_ms();
	int64_t due_ms = top->due_at_ms - now_ms, scan_due_ms = top->scan_due_at_ms - now_ms;

	if (top->view.paused && top->now != NULL) {
		due_ms = scan_due_ms = SLEEP_MS;
	}
	top_link_poll(top->link, &waited[2], &due_ms);
	top_link_poll(top->scan_link, &waited[3], &scan_due_ms);
	due_ms = scan_due_ms < due_ms ? scan_due_ms : due_ms;
	due_ms = due_ms < 0 ? 0 : due_ms > SLEEP_MS ? SLEEP_MS : due_ms;
	poll(waited, sizeof waited / sizeof waited[0], (int)due_ms);
}

static int run(top *top)
{
	int key = KEY_NONE, number = 0, result = CLI_OK;

	while (!top->quit) {
		top_link_go_on(top->link);
		top_link_go_on(top->scan_link);
		take_answers(top, top->link);
		take_answers(top, top->scan_link);
		ask(top);
		look_for_trouble(top);
		if (top->changed) {
			draw(top);
		}
		wait_for_news(top);
		while ((number = terminal_signal()) != 0) {
			if (number != SIGWINCH) {
				top->quit = true;
				result = number == SIGINT ? CLI_OK : CLI_SIGNAL_BASE + number;
			}
			top->changed = true;
		}
		while (!top->quit && (key = terminal_key_take()) != KEY_NONE) {
			if (key == KEY_GONE) {
				top->quit = true;
				break;
			}
			press(top, key);
		}
	}
	return result;
}

/* ---- the ways to run */

static int columns_of_environment(void)
{
	const char *text = getenv("COLUMNS");
	long columns = text != NULL ? strtol(text, NULL, 10) : 0;

	return columns >= TOP_COLUMNS_MIN && columns <= TOP_COLUMNS_MAX ? (int)columns : 80;
}

static int snapshot(top *top, PGconn *connection)
{
	PGresult *answer = NULL;
	int columns = columns_of_environment(), rows = 0;
	int result = connect_run(top->invocation, connection, SQL_TOP_RUNNING, 0, NULL, "cannot look", &answer);

	if (result != CLI_OK) {
		return result;
	}
	top->running = read_json(answer);
	PQclear(answer);
	result = connect_run(top->invocation, connection, SQL_TOP, 0, NULL, "cannot look", &answer);
	if (result != CLI_OK) {
		return result;
	}
	take_snapshot(top, answer);
	PQclear(answer);
	if (top->now == NULL) {
		return cli_fail(top->invocation, CLI_FAILED, "pgonce doctor", "the contract answered in an unknown form");
	}
	if (top->invocation->given[OPTION_JSON]) {
		cli_print_json(json_incref(top->now));
		return CLI_OK;
	}
	if (isatty(STDOUT_FILENO)) {
		terminal_size(&columns, &rows);
	}
	top->view.totals = true;
	int count = top_draw(&top->view, top->now, NULL, columns, 0, top->lines);
	for (int i = 0; i < count; i++) {
		puts(top->lines[i].text);
	}
	return CLI_OK;
}

static terminal_look choose_look(const cli_invocation *invocation)
{
	const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");

	if (term == NULL || term[0] == '\0' || strcmp(term, "dumb") == 0) {
		return LOOK_DUMB;
	}
	return invocation->given[OPTION_NO_COLOR] || (no_color != NULL && no_color[0] != '\0') ? LOOK_PLAIN : LOOK_COLORED;
}

static int live(top *top, const char *conninfo)
{
	if (!terminal_open(choose_look(top->invocation))) {
		return cli_fail(top->invocation, CLI_FAILED, "pgonce top --once", "cannot set the terminal: %s",
		                strerror(errno));
	}
	top->link = top_link_open(conninfo);
	top->scan_link = top_link_open(conninfo);
	top->changed = true;
	int result = run(top);
	top_link_close(top->link);
	top_link_close(top->scan_link);
	terminal_close();
	return result;
}

int cli_top(const cli_invocation *invocation)
{
	top top = {
	    .invocation = invocation,
	    .view = {.interval_ms = invocation->given[OPTION_REFRESH] ? invocation->number[OPTION_REFRESH] : INTERVAL_MS}};
	bool once = invocation->given[OPTION_SNAPSHOT];
	once_session *session = NULL;
	int result = CLI_OK;

	if (!once && invocation->given[OPTION_JSON]) {
		return cli_fail(invocation, CLI_USAGE, "pgonce help top", "--json needs --once: one snapshot");
	}
	if (!once && !terminal_is_here()) {
		return cli_fail(invocation, CLI_USAGE, "pgonce help top: --once prints one view of it, --once --json its data",
		                "top needs a terminal: standard input and output");
	}
	char *conninfo = connect_conninfo(invocation);
	if (conninfo == NULL) {
		return CLI_USAGE;
	}
	top.lines = cli_allocate(sizeof *top.lines * (size_t)(TOP_ROWS_MAX + 1));
	/* What is wrong with the contract is said before the terminal is touched. */
	result = connect_session(invocation, conninfo, &session);
	if (result == CLI_OK && once) {
		result = snapshot(&top, once_session_connection(session));
	}
	once_session_close(session);
	if (result == CLI_OK && !once) {
		result = live(&top, conninfo);
	}
	json_decref(top.now);
	json_decref(top.running);
	json_decref(top.before);
	json_decref(top.chosen);
	free(top.story);
	free(top.trouble);
	free(top.lines);
	free(conninfo);
	return result;
}
