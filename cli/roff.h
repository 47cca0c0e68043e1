/* SPDX-License-Identifier: PostgreSQL */
/* roff.h: text in the form of a man page. */
#pragma once

#include <stdio.h>

/* Escaped; a line that starts with it is not a request. */
void roff_text(FILE *out, const char *text);
void roff_line(FILE *out, const char *text);
/* A line of text with `code` between backquotes, as in Markdown. */
void roff_marked(FILE *out, const char *text);
void roff_head(FILE *out, const char *page, int section, const char *summary);
