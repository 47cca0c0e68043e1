/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_template.c: the console's templates: the first line is a document of JSON, the rest two
 * templates, with a line of --- between them. What is taken is written twice as the same, and no
 * < > or ' of the document gets into it. tests/fuzz/test_fuzz.py builds and runs it.
 */
#include "fuzz.h"
#include "render.h"

static bool has(const template_source *source, char c)
{
	return memchr(source->text, c, source->length) != NULL;
}

static void check_text(const template_source *sources, const char *text, size_t length)
{
	static const char escaped[] = "<>'";

	must(strlen(text) == length);
	for (const char *c = escaped; *c != '\0'; c++) {
		must(strchr(text, *c) == NULL || has(&sources[0], *c) || has(&sources[1], *c));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input in = {data, size};
	char *text = take_bytes(&in, in.size);
	char *line = strchr(text, '\n');
	json_t *document = line == NULL ? NULL : json_loadb(text, (size_t)(line - text), JSON_ALLOW_NUL, NULL);

	if (document != NULL) {
		char *first = line + 1;
		char *rest = memmem(first, strlen(first), "\n---\n", 5);
		size_t first_length = rest == NULL ? strlen(first) : (size_t)(rest - first);
		char *second = rest == NULL ? first + first_length : rest + 5;
		const template_source sources[] = {{.name = "page", .text = first, .length = first_length},
		                                   {.name = "part", .text = second, .length = strlen(second)}};
		char *problem = NULL;
		templates *templates = templates_parse(sources, 2, &problem);
		must((templates == NULL) == (problem != NULL));
		for (int i = 0; i < 2 && templates != NULL; i++) {
			size_t length = 0, again_length = 0;
			char *written = templates_render(templates, sources[i].name, document, &length);
			char *again = templates_render(templates, sources[i].name, document, &again_length);
			must((written == NULL) == (again == NULL));
			if (written != NULL) {
				must(length == again_length && memcmp(written, again, length) == 0);
				check_text(sources, written, length);
			}
			free(written);
			free(again);
		}
		templates_free(templates);
		free(problem);
	}
	json_decref(document);
	free(text);
	return 0;
}
