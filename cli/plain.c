/* SPDX-License-Identifier: PostgreSQL */
/* plain.c: see plain.h. */
#include "plain.h"

#include <ctype.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum {
	TEXT_BYTES_SHOWN = 4096,
	HEX_BYTES_SHOWN = 256,
	HEX_BYTES_A_LINE = 16
};

size_t plain_hidden(const char *text)
{
	const unsigned char *c = (const unsigned char *)text;

	if ((c[0] < ' ' && c[0] != '\0') || c[0] == 0x7f) {
		return 1;
	}
	/* U+0080 to U+009F; U+061C. */
	if ((c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f) || (c[0] == 0xd8 && c[1] == 0x9c)) {
		return 2;
	}
	/* U+200E, U+200F, U+2028 to U+202E; U+2066 to U+2069. */
	bool turns = c[0] == 0xe2 && ((c[1] == 0x80 && (c[2] == 0x8e || c[2] == 0x8f || (c[2] >= 0xa8 && c[2] <= 0xae))) ||
	                              (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9));
	return turns ? 3 : 0;
}

void plain_print(const char *text)
{
	while (*text != '\0') {
		size_t hidden = plain_hidden(text);
		putchar(hidden > 0 ? '?' : *text);
		text += hidden > 0 ? hidden : 1;
	}
}

void plain_line(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	char *line = cli_format_list(format, arguments);
	va_end(arguments);
	plain_print(line);
	putchar('\n');
	free(line);
}

/* Text: valid UTF-8 without control characters other than tab and line ends. */
static bool is_text(const unsigned char *data, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if ((data[i] < ' ' && data[i] != '\n' && data[i] != '\t' && data[i] != '\r') || data[i] == 0x7f) {
			return false;
		}
	}
	json_t *checked = json_stringn((const char *)data, length);
	bool valid = checked != NULL;
	json_decref(checked);
	return valid;
}

static void print_text(const char *prefix, const unsigned char *data, size_t length)
{
	size_t shown = length < TEXT_BYTES_SHOWN ? length : TEXT_BYTES_SHOWN;
	bool at_start = true;

	for (size_t i = 0; i < shown; i++) {
		if (at_start) {
			printf("  %s", prefix);
		}
		char next[4] = {0};
		memcpy(next, data + i, length - i < 3 ? length - i : 3);
		/* is_text has excluded the others */
		size_t hidden = data[i] < 0x80 ? 0 : plain_hidden(next);
		if (data[i] != '\r') {
			putchar(hidden > 0 ? '?' : data[i]);
		}
		at_start = data[i] == '\n';
		i += hidden > 0 ? hidden - 1 : 0;
	}
	if (!at_start) {
		putchar('\n');
	}
	if (shown < length) {
		printf("  ... %zu bytes more\n", length - shown);
	}
}

static void print_hex(const char *prefix, const unsigned char *data, size_t length)
{
	size_t shown = length < HEX_BYTES_SHOWN ? length : HEX_BYTES_SHOWN;

	for (size_t at = 0; at < shown; at += HEX_BYTES_A_LINE) {
		size_t end = at + HEX_BYTES_A_LINE < shown ? at + HEX_BYTES_A_LINE : shown;
		printf("  %s%08zx ", prefix, at);
		for (size_t i = at; i < at + HEX_BYTES_A_LINE; i++) {
			if (i < end) {
				printf(" %02x", data[i]);
			} else {
				fputs("   ", stdout);
			}
		}
		fputs("  ", stdout);
		for (size_t i = at; i < end; i++) {
			putchar(data[i] < 0x7f && isprint(data[i]) ? data[i] : '.');
		}
		putchar('\n');
	}
	if (shown < length) {
		printf("  ... %zu bytes more\n", length - shown);
	}
}

void plain_bytes(const char *prefix, const unsigned char *data, size_t length)
{
	if (is_text(data, length)) {
		print_text(prefix, data, length);
	} else {
		print_hex(prefix, data, length);
	}
}

unsigned char *plain_decode(const char *text, size_t *length)
{
	size_t text_length = strlen(text);
	unsigned char *bytes = cli_allocate(text_length / 4 * 3 + 1);
	int decoded = EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)text_length);

	if (decoded < 0) {
		free(bytes);
		return NULL;
	}
	/* It counts the padding as bytes. */
	for (size_t i = 0; i < 2 && text_length > i && text[text_length - 1 - i] == '='; i++) {
		decoded--;
	}
	*length = (size_t)decoded;
	return bytes;
}
