/* SPDX-License-Identifier: PostgreSQL */
/* terminal.c: see terminal.h. */
#include "terminal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum {
	INPUT_BYTES = 256,
	ESCAPE_WAIT_MS = 50, /* for the rest of a sequence that a slow line cut */
	STANDARD_COLUMNS = 80,
	STANDARD_ROWS = 24
};

static struct {
	bool open; /* to be closed */
	bool raw;  /* set as top needs it, now */
	terminal_look look;
	struct termios before;
	int signals[2]; /* a pipe: a byte for each signal */
	unsigned char input[INPUT_BYTES];
	size_t input_length;
	size_t input_at;
} terminal = {.signals = {-1, -1}};

bool terminal_is_here(void)
{
	return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

static void write_all(const char *text, size_t length)
{
	while (length > 0) {
		ssize_t written = write(STDOUT_FILENO, text, length);
		if (written < 0 && errno == EAGAIN) {
			struct pollfd writable = {.fd = STDOUT_FILENO, .events = POLLOUT};
			poll(&writable, 1, -1);
			continue;
		}
		if (written < 0 && errno != EINTR) {
			return; /* the terminal is gone: the next read says so */
		}
		text += written > 0 ? written : 0;
		length -= written > 0 ? (size_t)written : 0;
	}
}

static void write_text(const char *text)
{
	write_all(text, strlen(text));
}

/* ---- signals */

static void note_signal(int number)
{
	int saved = errno;
	unsigned char byte = (unsigned char)number;

	/* A full pipe has news enough. */
	if (write(terminal.signals[1], &byte, 1) < 0) {
		errno = saved;
	}
	errno = saved;
}

static const int noted[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP, SIGCONT};

static void set_handlers(void (*handler)(int))
{
	for (size_t i = 0; i < sizeof noted / sizeof noted[0]; i++) {
		struct sigaction action = {.sa_handler = handler};
		sigemptyset(&action.sa_mask);
		sigaction(noted[i], &action, NULL);
	}
}

/* ---- putting it to use, and back */

static void set_raw(void)
{
	struct termios raw = terminal.before;

	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	raw.c_iflag &= ~(tcflag_t)(IXON | ICRNL);
	raw.c_cc[VMIN] = 0;
	raw.c_cc[VTIME] = 0;
	tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
	if (terminal.look != LOOK_DUMB) {
		write_text("\033[?1049h\033[?25l\033[2J"); /* a screen of its own, no cursor */
	}
	terminal.raw = true;
}

static void set_back(void)
{
	if (!terminal.raw) {
		return;
	}
	terminal.raw = false;
	if (terminal.look != LOOK_DUMB) {
		write_text("\033[0m\033[?25h\033[?1049l");
	}
	tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal.before);
}

bool terminal_open(terminal_look look)
{
	static bool registered = false;

	if (tcgetattr(STDIN_FILENO, &terminal.before) != 0 || pipe2(terminal.signals, O_CLOEXEC | O_NONBLOCK) != 0) {
		return false;
	}
	terminal.look = look;
	terminal.open = true;
	if (!registered) {
		registered = true;
		atexit(terminal_close);
	}
	set_handlers(note_signal);
	set_raw();
	return true;
}

void terminal_close(void)
{
	if (!terminal.open) {
		return;
	}
	terminal.open = false;
	set_back();
	set_handlers(SIG_DFL);
	close(terminal.signals[0]);
	close(terminal.signals[1]);
}

/* As any program is stopped, with the terminal as it was before; and back when it goes on. */
static void stop(void)
{
	sigset_t stopping;

	set_back();
	signal(SIGTSTP, SIG_DFL);
	sigemptyset(&stopping);
	sigaddset(&stopping, SIGTSTP);
	raise(SIGTSTP);
	sigprocmask(SIG_UNBLOCK, &stopping, NULL);
	struct sigaction action = {.sa_handler = note_signal};
	sigemptyset(&action.sa_mask);
	sigaction(SIGTSTP, &action, NULL);
	set_raw();
}

int terminal_signal_fd(void)
{
	return terminal.signals[0];
}

int terminal_signal(void)
{
	unsigned char number = 0;

	if (read(terminal.signals[0], &number, 1) != 1) {
		return 0;
	}
	if (number == SIGTSTP) {
		stop();
		return SIGWINCH; /* draw anew, perhaps in another size */
	}
	if (number == SIGCONT) {
		/* Stopped by SIGSTOP, which tells nobody: the shell may have set the terminal to its own needs. */
		set_raw();
		return SIGWINCH;
	}
	return number;
}

/* ---- keys */

static bool fill(int wait_ms)
{
	struct pollfd readable = {.fd = STDIN_FILENO, .events = POLLIN};

	if (wait_ms > 0) {
		poll(&readable, 1, wait_ms);
	}
	if (terminal.input_at > 0) {
		memmove(terminal.input, terminal.input + terminal.input_at, terminal.input_length - terminal.input_at);
		terminal.input_length -= terminal.input_at;
		terminal.input_at = 0;
	}
	assert(terminal.input_length <= INPUT_BYTES);
	ssize_t got = read(STDIN_FILENO, terminal.input + terminal.input_length, INPUT_BYTES - terminal.input_length);
	terminal.input_length += got > 0 ? (size_t)got : 0;
	return got > 0;
}

/* Of what follows the escape: "[A", "OA", "[5~". What is not known is passed over. */
static int take_sequence(void)
{
	static const struct {
		const char *sequence;
		int key;
	} sequences[] = {
	    {"[A", KEY_UP},    {"OA", KEY_UP},   {"[B", KEY_DOWN},  {"OB", KEY_DOWN},     {"[C", KEY_RIGHT},
	    {"OC", KEY_RIGHT}, {"[D", KEY_LEFT}, {"OD", KEY_LEFT},  {"[5~", KEY_PAGE_UP}, {"[6~", KEY_PAGE_DOWN},
	    {"[H", KEY_HOME},  {"[F", KEY_END},  {"[1~", KEY_HOME}, {"[4~", KEY_END},
	};
	const char *at = (const char *)terminal.input + terminal.input_at;
	size_t left = terminal.input_length - terminal.input_at;

	for (size_t i = 0; i < sizeof sequences / sizeof sequences[0]; i++) {
		size_t length = strlen(sequences[i].sequence);
		if (left >= length && memcmp(at, sequences[i].sequence, length) == 0) {
			terminal.input_at += length;
			return sequences[i].key;
		}
	}
	if (left > 0 && (at[0] == '[' || at[0] == 'O')) {
		/* Parameters, and one letter that ends it. */
		size_t length = 1;
		while (length < left && (unsigned char)at[length] < '@') {
			length++;
		}
		terminal.input_at += length < left ? length + 1 : left;
		return terminal_key_take();
	}
	return KEY_ESCAPE;
}

int terminal_key_take(void)
{
	if (terminal.input_at == terminal.input_length && !fill(0)) {
		struct pollfd readable = {.fd = STDIN_FILENO, .events = POLLIN};
		/* Nothing to read, although it is readable: the other end is gone. */
		return poll(&readable, 1, 0) > 0 && (readable.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0 ? KEY_GONE
		                                                                                             : KEY_NONE;
	}
	unsigned char byte = terminal.input[terminal.input_at++];
	if (byte != 0x1b) {
		return byte;
	}
	if (terminal.input_at == terminal.input_length && !fill(ESCAPE_WAIT_MS)) {
		return KEY_ESCAPE;
	}
	return take_sequence();
}

/* ---- the screen */

void terminal_size(int *columns, int *rows)
{
	struct winsize size = {.ws_col = 0};

	bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
	*columns = known && size.ws_col > 0 ? size.ws_col : STANDARD_COLUMNS;
	*rows = known && size.ws_row > 0 ? size.ws_row : STANDARD_ROWS;
	*rows = *rows < TOP_ROWS_MIN ? TOP_ROWS_MIN : *rows;
}

static const char *style_of(top_style style)
{
	bool colored = terminal.look == LOOK_COLORED;

	switch (style) {
	case TOP_TITLE:
		return "\033[1m";
	case TOP_HEADER:
		return colored ? "\033[30;46m" : "\033[7m";
	case TOP_SELECTED:
		return colored ? "\033[30;47m" : "\033[7m";
	case TOP_ALARM:
		return colored ? "\033[31m" : "\033[1m";
	case TOP_PLAIN:
		break;
	}
	return "";
}

void terminal_draw(const top_line *lines, int count)
{
	char *text = NULL;
	size_t length = 0;
	FILE *out = open_memstream(&text, &length);

	if (out == NULL) {
		return;
	}
	fputs(terminal.look == LOOK_DUMB ? "" : "\033[H", out);
	for (int i = 0; i < count; i++) {
		if (terminal.look == LOOK_DUMB) {
			fprintf(out, "%s\n", lines[i].text);
		} else {
			/* What is left of the line before is cleared first: after a full line the cursor stands on its last column. */
			fprintf(out, "%s\033[2K%s%s\033[0m", i > 0 ? "\r\n" : "", style_of(lines[i].style), lines[i].text);
		}
	}
	fputs(terminal.look == LOOK_DUMB ? "\n" : "", out);
	if (fclose(out) == 0) {
		write_all(text, length);
	}
	free(text);
}
