/* SPDX-License-Identifier: PostgreSQL */
/*
 * config.c: the shape of the configuration file: turns bytes into sections and entries, or a
 * problem with file and line. Parsed by hand: libinih as packaged gives its handler no line
 * numbers, cuts lines at 200 bytes and values at " ;", and ends a line at a NUL.
 */
#include "config.h"
#include "utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX (1024 * 1024)
#define LINE_BYTES_MAX 16384
#define NAME_BYTES_MAX 63
#define PROBLEMS_MAX 50 /* for another kind of file, no more are listed */

static const char *const kinds[] = {"relay", "consume"};
static const char name_characters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

struct config {
	char *path;
	char *text; /* the file, cut into the strings that sections and entries borrow */
	config_section *sections;
	size_t section_count;
	config_entry *entries; /* of all sections, in file order */
	size_t entry_count;
	size_t *first_entry; /* of each section: growing would invalidate pointers */
	bool exposed;        /* users other than the owner may read the file */
};

static _Noreturn void out_of_memory(void)
{
	static const char text[] = "out of memory while reading the configuration\n";
	ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
	(void)written;
	_exit(1);
}

static void *grown(void *memory, size_t count, size_t size)
{
	void *result = realloc(memory, count * size);
	if (result == NULL) {
		out_of_memory();
	}
	return result;
}

static char *duplicate(const char *text)
{
	char *copy = strdup(text);
	if (copy == NULL) {
		out_of_memory();
	}
	return copy;
}

/* ---- problems */

__attribute__((format(printf, 3, 4))) static char *at_line(const config *config, int line, const char *format, ...)
{
	char *text = NULL, *whole = NULL;
	va_list arguments;

	va_start(arguments, format);
	int length = vasprintf(&text, format, arguments);
	va_end(arguments);
	if (length < 0 || (line > 0 ? asprintf(&whole, "%s:%d: %s", config->path, line, text)
	                            : asprintf(&whole, "%s: %s", config->path, text)) < 0) {
		out_of_memory();
	}
	free(text);
	return whole;
}

char *config_problem(const config *config, const config_section *section, const config_entry *entry, const char *format,
                     ...)
{
	char *text = NULL, *where = NULL;
	va_list arguments;

	va_start(arguments, format);
	int length = vasprintf(&text, format, arguments);
	va_end(arguments);
	if (length < 0) {
		out_of_memory();
	}
	bool named = section != NULL && section->kind[0] != '\0';
	if (asprintf(&where, "%s%s%s%s%s%s%s", named ? "[" : "", named ? section->kind : "", named ? " " : "",
	             named ? section->name : "", named ? "]" : "", named && entry != NULL ? " " : "",
	             entry != NULL ? entry->name : "") < 0) {
		out_of_memory();
	}
	int line = entry != NULL ? entry->line : section != NULL ? section->line : 0;
	char *whole = at_line(config, line, "%s%s%s", where, where[0] != '\0' ? ": " : "", text);
	free(where);
	free(text);
	return whole;
}

static bool has_line(const char *text, const char *line, size_t length)
{
	for (const char *at = text; at != NULL; at = strchr(at, '\n'), at = at != NULL ? at + 1 : NULL) {
		if (strncmp(at, line, length) == 0 && (at[length] == '\n' || at[length] == '\0')) {
			return true;
		}
	}
	return false;
}

void config_problem_add(char **problem, char *more)
{
	for (const char *line = more; line != NULL && *line != '\0';) {
		size_t length = strcspn(line, "\n");
		if (*problem == NULL || !has_line(*problem, line, length)) {
			char *longer = NULL;
			if (asprintf(&longer, "%s%s%.*s", *problem == NULL ? "" : *problem, *problem == NULL ? "" : "\n",
			             (int)length, line) < 0) {
				out_of_memory();
			}
			free(*problem);
			*problem = longer;
		}
		line += length + (line[length] == '\n');
	}
	free(more);
}

/* ---- the bytes */

/* True: the line is text, and not too long. */
static char *check_line(const config *config, int line, const char *text, size_t length)
{
	const unsigned char *bytes = (const unsigned char *)text;

	if (length > LINE_BYTES_MAX) {
		return at_line(config, line, "this line has %zu bytes; at most %d are read", length, LINE_BYTES_MAX);
	}
	for (size_t i = 0, step = 0; i < length; i += step) {
		step = utf8_length(bytes + i, length - i);
		if (step == 0) {
			return at_line(config, line, "byte %zu of this line (0x%02x) is not UTF-8: save the file as UTF-8", i + 1,
			               bytes[i]);
		}
		if ((bytes[i] < ' ' && bytes[i] != '\t') || bytes[i] == 0x7f) {
			return at_line(config, line, "byte %zu of this line (0x%02x) is a control character: remove it", i + 1,
			               bytes[i]);
		}
	}
	return NULL;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

/* Without leading and trailing blanks; the end is written into the text. */
static char *trimmed(char *text)
{
	while (is_blank(*text)) {
		text++;
	}
	size_t length = strlen(text);
	while (length > 0 && is_blank(text[length - 1])) {
		length--;
	}
	text[length] = '\0';
	return text;
}

/* ---- lines */

static void add_section(config *config, const char *kind, const char *name, int line)
{
	config->sections = grown(config->sections, config->section_count + 1, sizeof *config->sections);
	config->first_entry = grown(config->first_entry, config->section_count + 1, sizeof *config->first_entry);
	config->first_entry[config->section_count] = config->entry_count;
	config->sections[config->section_count++] = (config_section){.kind = kind, .name = name, .line = line};
}

static bool is_kind(const char *word)
{
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		if (strcmp(kinds[i], word) == 0) {
			return true;
		}
	}
	return false;
}

/*
 * "[relay orders]". If the line is invalid, the lines after it must not join another section: they
 * go to a section whose kind no reader looks up.
 */
static char *read_section(config *config, int line, char *text)
{
	size_t length = strlen(text);
	size_t place = config->section_count;

	add_section(config, "?", "", line);
	if (text[length - 1] != ']') {
		return at_line(config, line, "write a section as [relay NAME] or [consume NAME], on its own line");
	}
	text[length - 1] = '\0';
	char *kind = trimmed(text + 1);
	size_t kind_length = strcspn(kind, " \t");
	char *name = kind[kind_length] == '\0' ? kind + kind_length : trimmed(kind + kind_length + 1);
	kind[kind_length] = '\0';
	if (!is_kind(kind)) {
		return at_line(config, line, "[%s%s%s]: unknown kind of section; use [relay NAME] or [consume NAME]", kind,
		               name[0] != '\0' ? " " : "", name);
	}
	if (name[0] == '\0') {
		return at_line(config, line, "[%s] has no name: write [%s NAME]", kind, kind);
	}
	if (strspn(name, name_characters) != strlen(name) || strlen(name) > NAME_BYTES_MAX) {
		return at_line(config, line, "[%s %s]: a name has at most %d letters, digits, and any of - _ .", kind, name,
		               NAME_BYTES_MAX);
	}
	const config_section *other = config_find(config, kind, name);
	if (other != NULL) {
		return at_line(config, line, "[%s %s] already exists, in line %d: give one of them another name", kind, name,
		               other->line);
	}
	config->sections[place].kind = kind;
	config->sections[place].name = name;
	return NULL;
}

/*
 * The text between double quotes is the value, unchanged. Without quotes a " #" or " ;" is refused:
 * half of all INI files mean a comment by it, half a part of the value.
 */
static char *read_value(const config *config, int line, const char *name, char **value)
{
	char *text = *value;
	size_t length = strlen(text);

	if (text[0] == '"') {
		if (length < 2 || text[length - 1] != '"') {
			return at_line(config, line, "%s: the value begins with a double quote and does not end with one", name);
		}
		text[length - 1] = '\0';
		*value = text + 1;
		return NULL;
	}
	if (length == 0) {
		return at_line(config, line, "%s has no value: remove the line, or write \"\" for an empty text", name);
	}
	for (size_t i = 0; i < length; i++) {
		if ((text[i] == '#' || text[i] == ';') && (i == 0 || is_blank(text[i - 1]))) {
			return at_line(
			    config, line,
			    "%s: is the text after '%c' a comment? Put comments on their own lines; if it is part of the "
			    "value, put the value in double quotes",
			    name, text[i]);
		}
	}
	return NULL;
}

/*
 * For a line that is not an entry: the rest may be a password in another format ("password:
 * hunter2").
 */
static const char *first_word(char *text)
{
	text[strcspn(text, " \t:")] = '\0';
	return text;
}

/* "url = nats://127.0.0.1:4222" */
static char *read_entry(config *config, int line, char *text)
{
	char *equals = strchr(text, '=');

	if (equals == NULL) {
		return at_line(config, line, "'%s' is neither a [section] nor option = value", first_word(text));
	}
	*equals = '\0';
	char *name = trimmed(text);
	char *value = trimmed(equals + 1);
	if (name[0] == '\0' || strspn(name, name_characters) != strlen(name) || strlen(name) > NAME_BYTES_MAX) {
		name[strcspn(name, ":")] = '\0'; /* "password: a=b" */
		return at_line(config, line, "'%s' is not a valid option name", name);
	}
	/*
	 * Any other option there would apply to relays and consumers alike, and they have no common
	 * options.
	 */
	if (config->section_count == 1 && strcmp(name, "dsn") != 0) {
		return at_line(config, line,
		               "%s: only dsn is allowed before the first section; put it into [relay NAME] or [consume NAME]",
		               name);
	}
	char *problem = read_value(config, line, name, &value);
	if (problem != NULL) {
		return problem;
	}
	config->entries = grown(config->entries, config->entry_count + 1, sizeof *config->entries);
	config->entries[config->entry_count++] = (config_entry){.name = name, .value = value, .line = line};
	return NULL;
}

static char *read_line(config *config, int line, char *text)
{
	text = trimmed(text);
	if (text[0] == '\0' || text[0] == '#' || text[0] == ';') {
		return NULL;
	}
	return text[0] == '[' ? read_section(config, line, text) : read_entry(config, line, text);
}

static char *read_lines(config *config, size_t length)
{
	static const char byte_order_mark[] = "\xef\xbb\xbf";
	char *at = config->text, *end = config->text + length;
	char *problems = NULL;
	int problem_count = 0;

	if (length >= 3 && memcmp(at, byte_order_mark, 3) == 0) {
		at += 3;
	}
	for (int line = 1; at < end; line++) {
		char *newline = memchr(at, '\n', (size_t)(end - at));
		char *line_end = newline != NULL ? newline : end;
		char *next = newline != NULL ? newline + 1 : end;
		if (line_end > at && line_end[-1] == '\r') {
			line_end--;
		}
		char *problem = check_line(config, line, at, (size_t)(line_end - at));
		if (problem == NULL) {
			*line_end = '\0';
			problem = read_line(config, line, at);
		}
		if (problem != NULL) {
			config->sections[config->section_count - 1].damaged = true;
			config_problem_add(&problems, ++problem_count <= PROBLEMS_MAX ? problem : (free(problem), NULL));
		}
		at = next;
	}
	if (problem_count > PROBLEMS_MAX) {
		config_problem_add(&problems, at_line(config, 0, "%d more lines are wrong: is this the configuration file?",
		                                      problem_count - PROBLEMS_MAX));
	}
	return problems;
}

/* ---- the file */

static config *new_config(const char *path)
{
	config *made = grown(NULL, 1, sizeof *made);

	*made = (config){.path = duplicate(path)};
	add_section(made, "", "", 0);
	return made;
}

/* Only now do the entries keep their places. */
static void give_sections_their_entries(config *config)
{
	for (size_t i = 0; i < config->section_count; i++) {
		size_t first = config->first_entry[i];
		size_t end = i + 1 < config->section_count ? config->first_entry[i + 1] : config->entry_count;
		config->sections[i].entries = end > first ? config->entries + first : NULL;
		config->sections[i].entry_count = end - first;
	}
}

/* True: all of made->text is valid. */
static bool finish(config *made, size_t length, char **problem)
{
	*problem = read_lines(made, length);
	give_sections_their_entries(made);
	return *problem == NULL;
}

/* An invalid configuration is not returned. */
static bool give(bool good, config **result)
{
	if (!good) {
		config_free(*result);
		*result = NULL;
	}
	return good;
}

bool config_parse(const char *path, const char *text, size_t length, config **result, char **problem)
{
	config *made = new_config(path);

	made->text = grown(NULL, length + 1, 1);
	memcpy(made->text, text, length);
	made->text[length] = '\0';
	*result = made;
	return give(finish(made, length, problem), result);
}

static char *read_whole(config *made, int fd, size_t *length)
{
	size_t used = 0;

	for (;;) {
		made->text = grown(made->text, used + 65536 + 1, 1);
		ssize_t count = read(fd, made->text + used, 65536);
		if (count < 0 && errno == EINTR) {
			continue;
		}
		if (count < 0) {
			return at_line(made, 0, "cannot be read: %s", strerror(errno));
		}
		if (count == 0) {
			break;
		}
		used += (size_t)count;
		if (used > FILE_BYTES_MAX) {
			return at_line(made, 0, "has more than %d bytes: is this the configuration file?", FILE_BYTES_MAX);
		}
	}
	made->text[used] = '\0';
	*length = used;
	return NULL;
}

bool config_read_some(const char *path, config **result, char **problem)
{
	config *made = new_config(path);
	struct stat status;
	size_t length = 0;

	*result = NULL;
	*problem = NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0) {
		*problem = at_line(made, 0, "cannot be opened: %s", strerror(errno));
	} else if (fstat(fd, &status) != 0) {
		*problem = at_line(made, 0, "cannot be read: %s", strerror(errno));
	} else if (S_ISDIR(status.st_mode)) {
		*problem = at_line(made, 0, "is a directory; name the file in it");
	} else {
		made->exposed = S_ISREG(status.st_mode) && (status.st_mode & S_IROTH) != 0;
		*problem = read_whole(made, fd, &length);
	}
	if (fd >= 0) {
		close(fd);
	}
	if (*problem != NULL) {
		config_free(made);
		return false;
	}
	bool good = finish(made, length, problem);
	*result = made;
	return good;
}

bool config_read(const char *path, config **result, char **problem)
{
	return give(config_read_some(path, result, problem), result);
}

void config_free(config *config)
{
	if (config == NULL) {
		return;
	}
	free(config->path);
	free(config->text);
	free(config->sections);
	free(config->entries);
	free(config->first_entry);
	free(config);
}

const char *config_path(const config *config)
{
	return config->path;
}

size_t config_section_count(const config *config)
{
	return config->section_count;
}

const config_section *config_section_at(const config *config, size_t index)
{
	return index < config->section_count ? &config->sections[index] : NULL;
}

const config_section *config_find(const config *config, const char *kind, const char *name)
{
	for (size_t i = 0; i < config->section_count; i++) {
		if (strcmp(config->sections[i].kind, kind) == 0 && strcmp(config->sections[i].name, name) == 0) {
			return &config->sections[i];
		}
	}
	return NULL;
}

/* ---- secrets that others may read */

/*
 * "...password...", "secret", "header" (bearer tokens); not secret_file and the like, which name a
 * file.
 */
static bool is_secret(const config_entry *entry)
{
	static const char *const words[] = {"password", "secret", "token", "sasl.jaas"};
	size_t length = strlen(entry->name);

	if ((length > 5 && strcmp(entry->name + length - 5, "_file") == 0) || strstr(entry->name, "location") != NULL) {
		return false;
	}
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
		if (strstr(entry->name, words[i]) != NULL) {
			return true;
		}
	}
	if (strcmp(entry->name, "dsn") == 0 && strstr(entry->value, "password") != NULL) {
		return true;
	}
	if (strcmp(entry->name, "header") == 0) {
		return strncasecmp(entry->value, "authorization", 13) == 0;
	}
	/* scheme://user:password@host */
	const char *scheme = strstr(entry->value, "://");
	const char *at = scheme != NULL ? strchr(scheme, '@') : NULL;
	const char *colon = scheme != NULL ? strchr(scheme + 3, ':') : NULL;
	return at != NULL && colon != NULL && colon < at;
}

char *config_exposed(const config *config)
{
	for (size_t i = 0; config->exposed && i < config->section_count; i++) {
		const config_section *section = &config->sections[i];
		for (size_t j = 0; j < section->entry_count; j++) {
			if (is_secret(&section->entries[j])) {
				return config_problem(config, section, &section->entries[j],
				                      "this is a secret, and every user may read the file: chmod o-r %s", config->path);
			}
		}
	}
	return NULL;
}
