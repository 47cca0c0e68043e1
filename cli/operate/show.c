/* SPDX-License-Identifier: PostgreSQL */
/* show.c: pgonce show: the story of one intent, for people or as its JSON document. */
#include <stdlib.h>

#include "story.h"

int cli_show(const cli_invocation *invocation)
{
	once_intent intent = cli_intent(invocation);
	once_session *session = NULL;
	story story = {.document = NULL};
	int result = connect_open(invocation, &session);

	if (result == CLI_OK) {
		result = story_ask(invocation, once_session_connection(session), &intent, &story);
	}
	if (result == CLI_OK && story.told == NULL) {
		result = story_absent(invocation, session, &intent);
	} else if (result == CLI_OK && invocation->given[OPTION_JSON]) {
		puts(story.document);
	} else if (result == CLI_OK) {
		story_tell(story.told);
	}
	story_free(&story);
	once_session_close(session);
	return result;
}
