/* SPDX-License-Identifier: PostgreSQL */
/* bytes.c: see bytes.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "cli.h"

bool bytes_append(bytes *bytes, const void *data, size_t length)
{
	if (length > bytes->bytes_max - bytes->length) {
		return false;
	}
	if (bytes->length + length > bytes->capacity) {
		size_t capacity = bytes->capacity < 4096 ? 4096 : bytes->capacity;
		while (capacity < bytes->length + length) {
			capacity *= 2;
		}
		unsigned char *grown = cli_allocate(capacity);
		if (bytes->length > 0) {
			memcpy(grown, bytes->data, bytes->length);
		}
		free(bytes->data);
		bytes->data = grown;
		bytes->capacity = capacity;
	}
	if (length > 0) {
		memcpy(bytes->data + bytes->length, data, length);
	}
	bytes->length += length;
	return true;
}

void bytes_free(bytes *bytes)
{
	free(bytes->data);
	bytes->data = NULL;
	bytes->length = 0;
	bytes->capacity = 0;
}

int bytes_read_file(bytes *bytes, const char *path)
{
	unsigned char block[16384];
	int result = 0;
	int fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		return errno;
	}
	for (;;) {
		ssize_t got = read(fd, block, sizeof block);
		if (got == 0) {
			break;
		}
		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got < 0) {
			result = errno;
			break;
		}
		if (!bytes_append(bytes, block, (size_t)got)) {
			result = EFBIG;
			break;
		}
	}
	close(fd);
	return result;
}
