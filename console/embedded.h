/* SPDX-License-Identifier: PostgreSQL */
/* embedded.h: the files in pages/ and assets/, which tools/embed_files.py puts into the program. */
#pragma once

#include <stddef.h>

typedef struct embedded_file {
	const char *name; /* "console.css" */
	const char *type;
	const char *data; /* a NUL follows */
	size_t length;
	const char *etag;
} embedded_file;

extern const embedded_file embedded_files[];
extern const size_t embedded_file_count;
