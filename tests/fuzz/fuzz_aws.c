/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_aws.c: what AWS's services, its metadata endpoints and its shared files say. A profile's
 * entry is read as it was written, and of any file comes a trimmed line or nothing; an element of
 * XML is within its text, and a text that was escaped comes out as it went in, as does a form; an
 * error's code and sentence are printable and have an end; an entry of a batch is done only where
 * the answer names it as done with its proof, and nowhere as failed; credentials are whole or none
 * at all. tests/fuzz/test_fuzz.py builds and runs it. Input: 'f', a profile, an entry and a file;
 * 'p' and what is written into one; 'x' an element and XML; 'w' a text; 'e' an error; 'b' a batch's
 * answer; 'c' credentials.
 */
#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "aws_profile.h"
#include "aws_text.h"
#include "fuzz.h"

static once_bytes bytes_of(const char *text, size_t length)
{
	return (once_bytes){.data = text, .length = length};
}

/* ---- the shared files */

static char *entry_of(const char *text, size_t length, bool is_config, const char *profile, const char *name)
{
	char path[40];
	int file = memfd_create("profile", MFD_CLOEXEC);

	must(file >= 0 && write(file, text, length) == (ssize_t)length);
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	char *found = aws_profile_entry(path, is_config, profile, name);
	close(file);
	return found;
}

static void check_file(input *in)
{
	bool is_config = take_byte(in) & 1;
	char *profile = take_text(in, NULL), *name = take_text(in, NULL);
	size_t length = in->size;
	char *text = take_bytes(in, length);
	char *found = entry_of(text, length, is_config, profile, name);

	if (found != NULL) {
		size_t size = strlen(found);
		must(strchr(found, '\n') == NULL && size < length);
		must(size == 0 || (strchr(" \t\r", found[0]) == NULL && strchr(" \t\r", found[size - 1]) == NULL));
	}
	free(found);
	free(text);
	free(name);
	free(profile);
}

static bool is_plain(const char *text)
{
	for (const char *at = text; *at != '\0'; at++) {
		if (!isgraph((unsigned char)*at) || strchr("[]=#;", *at) != NULL) {
			return false;
		}
	}
	return text[0] != '\0';
}

static void check_written(input *in)
{
	uint8_t form = take_byte(in);
	char *profile = take_text(in, NULL), *value = take_text(in, NULL), *other = take_text(in, NULL);
	bool is_config = form & 1;

	if (is_plain(profile) && is_plain(other) && strcmp(profile, other) != 0 && strchr(value, '\n') == NULL &&
	    value[0] != '\0' && strchr(" \t\r", value[0]) == NULL && strchr(" \t\r", value[strlen(value) - 1]) == NULL) {
		char *text = NULL;
		const char *prefix = is_config && strcmp(profile, "default") != 0 ? "profile " : "";
		const char *others = is_config && strcmp(other, "default") != 0 ? "profile " : "";
		int length =
		    asprintf(&text, "# x\n[%s%s]\nKey = wrong\n%s[ %s%s ]\nkey%s=%s\r\ns3 =\n key = nested\n[%s%s]\nkey=no",
		             others, other, form & 2 ? "\n" : "", prefix, profile, form & 4 ? "\t" : "", value, others, other);
		must(length > 0);
		char *found = entry_of(text, (size_t)length, is_config, profile, "key");
		must(found != NULL && strcmp(found, value) == 0);
		free(found);
		free(text);
	}
	free(other);
	free(value);
	free(profile);
}

/* ---- XML and forms */

static void check_xml(input *in)
{
	char *element = take_text(in, NULL);
	size_t length = in->size, turns = 0;
	char *text = take_bytes(in, length);
	once_bytes rest = bytes_of(text, length), inner;

	while (element[0] != '\0' && aws_xml_next(&rest, element, &inner)) {
		const char *begin = inner.data, *next = rest.data;
		must(begin > text && begin + inner.length < next && next + rest.length == text + length);
		must(++turns <= length);
	}
	char *first = element[0] == '\0' ? NULL : aws_xml_text(bytes_of(text, length), element);
	must((first != NULL) == (turns > 0) && (first == NULL || strlen(first) <= length));
	free(first);
	free(text);
	free(element);
}

static void check_escaped(input *in)
{
	size_t length = in->size;
	char *text = take_bytes(in, length);
	char *xml = NULL, *form = NULL;
	size_t xml_length = 0, form_length = 0;
	FILE *to = open_memstream(&xml, &xml_length), *to_form = open_memstream(&form, &form_length);

	fputs("<a><Code>", to);
	for (size_t i = 0; i < length; i++) {
		const char *entity = text[i] == '<' ? "&lt;" : text[i] == '>' ? "&gt;" : text[i] == '&' ? "&amp;" : NULL;
		entity != NULL ? fputs(entity, to) : fputc(text[i], to);
	}
	fputs("</Code></a>", to);
	fclose(to);
	char *again = aws_xml_text(bytes_of(xml, xml_length), "Code");
	must(again != NULL && memcmp(again, text, length) == 0 && again[length] == '\0');
	aws_form_put(to_form, bytes_of(text, length));
	fclose(to_form);
	const char *at = form;
	for (size_t i = 0; i < length; i++) {
		unsigned int byte = (unsigned char)*at;
		must(isalnum((unsigned char)*at) || strchr("-_.~%", *at) != NULL);
		if (*at == '%') {
			must(sscanf(at, "%%%2X", &byte) == 1);
		}
		must(byte == (unsigned char)text[i]);
		at += *at == '%' ? 3 : 1;
	}
	must(at == form + form_length);
	free(again);
	free(form);
	free(xml);
	free(text);
}

/* ---- answers */

static void must_be_printable(const char *text, size_t room)
{
	must(memchr(text, '\0', room) != NULL);
	for (; *text != '\0'; text++) {
		must(*text >= ' ' && *text <= '~');
	}
}

static void check_error(const char *text, size_t length)
{
	char code[AWS_CODE_BYTES], problem[BROKER_PROBLEM_BYTES];

	memset(code, 'x', sizeof code);
	memset(problem, 'x', sizeof problem);
	aws_error_read(bytes_of(text, length), 400, code, problem);
	must_be_printable(code, sizeof code);
	must_be_printable(problem, sizeof problem);
	must(strncmp(problem, "HTTP 400", 8) == 0 && strpbrk(code, "#:") == NULL);
}

static bool names(const json_t *list, size_t number, const char *proof)
{
	size_t at;
	json_t *each;
	char id[24];

	snprintf(id, sizeof id, "%zu", number);
	json_array_foreach(list, at, each)
	{
		const char *its = json_string_value(json_object_get(each, "Id"));
		if (its != NULL && strcmp(its, id) == 0) {
			return proof == NULL || json_string_length(json_object_get(each, proof)) > 0;
		}
	}
	return false;
}

static void check_entry(aws_entry entry, const char *problem)
{
	must_be_printable(problem, BROKER_PROBLEM_BYTES);
	must(entry == AWS_ENTRY_DONE || entry == AWS_ENTRY_WRONG || entry == AWS_ENTRY_FAILED);
	must((entry == AWS_ENTRY_DONE) == (problem[0] == '\0'));
}

static void check_batch(const char *text, size_t length)
{
	char problem[BROKER_PROBLEM_BYTES];
	json_t *answer = json_loadb(text, length, 0, NULL);
	json_t *done = json_object_get(answer, "Successful"), *failed = json_object_get(answer, "Failed");

	for (size_t i = 0; i < 11; i++) {
		memset(problem, 'x', sizeof problem);
		aws_entry entry = aws_batch_read(answer, i, "MessageId", problem);
		check_entry(entry, problem);
		must((entry == AWS_ENTRY_DONE) == (names(done, i, "MessageId") && !names(failed, i, NULL)));
		must(entry != AWS_ENTRY_WRONG || names(failed, i, NULL));
		must(entry != AWS_ENTRY_DONE || aws_batch_is(answer));
		memset(problem, 'x', sizeof problem);
		entry = aws_batch_read_xml(bytes_of(text, length), i, "MessageId", problem);
		check_entry(entry, problem);
		must(entry == AWS_ENTRY_FAILED || aws_batch_is_xml(bytes_of(text, length)));
		must(entry == AWS_ENTRY_FAILED || memmem(text, length, "<Id>", 4) != NULL);
	}
	json_decref(answer);
}

static void check_whole(bool given, aws_credentials *found)
{
	must((found->access_key != NULL) == given && (found->secret_key != NULL) == given);
	must(given || (found->token == NULL && found->expires_s == 0));
	aws_credentials_wipe(found);
	must(found->access_key == NULL && found->secret_key == NULL && found->token == NULL);
}

static void check_credentials(const char *text, size_t length)
{
	aws_credentials found = {0};

	check_whole(aws_credentials_read(bytes_of(text, length), &found), &found);
	check_whole(aws_credentials_read_xml(bytes_of(text, length), &found), &found);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input in = {data, size};
	uint8_t what = take_byte(&in);

	if (what == 'f') {
		check_file(&in);
	} else if (what == 'p') {
		check_written(&in);
	} else if (what == 'x') {
		check_xml(&in);
	} else if (what == 'w') {
		check_escaped(&in);
	} else {
		size_t length = in.size;
		char *text = take_bytes(&in, length);
		if (what == 'e') {
			check_error(text, length);
		} else if (what == 'b') {
			check_batch(text, length);
		} else {
			check_credentials(text, length);
		}
		free(text);
	}
	return 0;
}
