/* SPDX-License-Identifier: PostgreSQL */
/*
 * terminal.h: the terminal of pgonce top: raw keys, a screen of lines, and signals as numbers. There is one terminal, so its state is the
 * module's. What it changed is put back by terminal_close, at exit, and while the process is stopped.
 */
#pragma once

#include <stdbool.h>

#include "top_screen.h"

typedef enum terminal_key {
	KEY_NONE = -1, /* nothing more to read */
	KEY_GONE = -2, /* the terminal is gone */
	/* Below 256: the byte itself. */
	KEY_UP = 256,
	KEY_DOWN,
	KEY_LEFT,
	KEY_RIGHT,
	KEY_PAGE_UP,
	KEY_PAGE_DOWN,
	KEY_HOME,
	KEY_END,
	KEY_ESCAPE
} terminal_key;

typedef enum terminal_look {
	LOOK_COLORED,
	LOOK_PLAIN, /* no colours; what stands out is in reverse or bold */
	LOOK_DUMB   /* no escape sequence at all: lines, one after the other */
} terminal_look;

/* Is this one: standard input and output are a terminal? */
bool terminal_is_here(void);
/* False where the terminal cannot be set; errno says why. */
bool terminal_open(terminal_look look);
void terminal_close(void);
void terminal_size(int *columns, int *rows);
/* Readable where a signal came; terminal_signal takes one: SIGINT, SIGTERM, SIGHUP, SIGWINCH (also after it was stopped); 0: none. */
int terminal_signal_fd(void);
int terminal_signal(void);
/* The next key, without waiting. */
int terminal_key_take(void);
void terminal_draw(const top_line *lines, int count);
