/* SPDX-License-Identifier: PostgreSQL */
/* buffer.c: see buffer.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buffer.h"
#include "cli.h"

bool buffer_append(buffer *buffer, const void *data, size_t length)
{
	if (length > buffer->bytes_max - buffer->length) {
		return false;
	}
	if (buffer->length + length > buffer->capacity) {
		size_t capacity = buffer->capacity < 4096 ? 4096 : buffer->capacity;
		while (capacity < buffer->length + length) {
			capacity *= 2;
		}
		unsigned char *grown = cli_allocate(capacity);
		if (buffer->length > 0) {
			memcpy(grown, buffer->data, buffer->length);
		}
		free(buffer->data);
		buffer->data = grown;
		buffer->capacity = capacity;
	}
	if (length > 0) {
		memcpy(buffer->data + buffer->length, data, length);
	}
	buffer->length += length;
	return true;
}

void buffer_free(buffer *buffer)
{
	free(buffer->data);
	buffer->data = NULL;
	buffer->length = 0;
	buffer->capacity = 0;
}

int buffer_read_file(buffer *buffer, const char *path)
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
		if (!buffer_append(buffer, block, (size_t)got)) {
			result = EFBIG;
			break;
		}
	}
	close(fd);
	return result;
}
