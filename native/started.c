/* SPDX-License-Identifier: PostgreSQL
 * The intents that a transaction has started: the notes of once._note_start, and whether each
 * intent has its outcome when the transaction ends. Outcomes stored by native finish are
 * remembered; for the others once._check_finished is asked. */
#include "native.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#define NOTE "once.started"
#define STRICT "once.strict"
#define RS '\x1e'
#define US '\x1f'

/* An outcome that native finish has stored in this transaction. */
typedef struct finished {
	uint64 lock; /* the intent */
	int32 fence; /* from its start */
	SubTransactionId by;
} finished;

static finished *finishes; /* in the transaction's memory */
static int finish_count;
static int finish_room;

/* A start of an intent whose names contain separators: its note cannot be split. */
typedef struct unusual {
	char *note;
	text *tenant;
	text *scope;
	text *key;
	int32 fence;
} unusual;

static unusual *unusuals; /* in the transaction's memory */
static int unusual_count;
static int unusual_room;

static char *started; /* the notes */
static char *strict_setting;
static bool strict = true;

/* RS US tenant US scope US key US: the beginning of this intent's note. */
static void note_begin(StringInfo note, const native_intent *intent)
{
	const text *parts[] = {intent->tenant, intent->scope, intent->key};

	appendStringInfoChar(note, RS);
	appendStringInfoChar(note, US);
	for (size_t i = 0; i < lengthof(parts); i++) {
		appendBinaryStringInfo(note, VARDATA_ANY(parts[i]), (int)VARSIZE_ANY_EXHDR(parts[i]));
		appendStringInfoChar(note, US);
	}
}

/* Its fingerprint, as concat_ws writes it. */
static void note_request(StringInfo note, const native_intent *intent)
{
	char *printed = DatumGetCString(DirectFunctionCall1(byteaout, PointerGetDatum(intent->fingerprint)));

	appendStringInfoString(note, printed);
	appendStringInfoChar(note, US);
	pfree(printed);
}

static const char *notes_get(void)
{
	return started == NULL ? "" : started;
}

bool native_has_started_none(void)
{
	return *notes_get() == '\0';
}

static bool has_separator(const text *name)
{
	const char *bytes = VARDATA_ANY(name);
	size_t length = VARSIZE_ANY_EXHDR(name);

	return memchr(bytes, RS, length) != NULL || memchr(bytes, US, length) != NULL;
}

static text *kept(const text *name)
{
	return cstring_to_text_with_len(VARDATA_ANY(name), (int)VARSIZE_ANY_EXHDR(name));
}

/* A key is printable, as the contract requires. */
static void remember_unusual(const native_intent *intent, int32 fence, const char *note)
{
	if (!has_separator(intent->tenant) && !has_separator(intent->scope)) {
		return;
	}
	MemoryContext before = MemoryContextSwitchTo(TopTransactionContext);
	if (unusual_count == unusual_room) {
		int room = unusual_room == 0 ? 8 : unusual_room * 2;
		unusuals = unusual_room == 0 ? palloc(sizeof *unusuals * (size_t)room)
		                             : repalloc(unusuals, sizeof *unusuals * (size_t)room);
		unusual_room = room;
	}
	unusuals[unusual_count++] = (unusual){.note = pstrdup(note),
	                                      .tenant = kept(intent->tenant),
	                                      .scope = kept(intent->scope),
	                                      .key = kept(intent->key),
	                                      .fence = fence};
	MemoryContextSwitchTo(before);
}

bool native_note_start(const native_intent *intent, int32 fence)
{
	const char *before = notes_get();
	StringInfoData note;

	initStringInfo(&note);
	note_begin(&note, intent);
	if (*before != '\0' && strstr(before, note.data) != NULL) {
		return false;
	}
	note_request(&note, intent);
	appendStringInfo(&note, "%d", fence);
	remember_unusual(intent, fence, note.data);
	if (*before != '\0') {
		appendStringInfoChar(&note, US);
		appendStringInfoString(&note, before);
	}
	(void)set_config_option(NOTE, note.data, superuser() ? PGC_SUSET : PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
	                        true, 0, false);
	pfree(note.data);
	return true;
}

int32 native_noted_start(const native_intent *intent)
{
	const char *notes = notes_get();
	StringInfoData begin;
	int64 fence = 0;

	if (*notes == '\0') {
		return -1;
	}
	initStringInfo(&begin);
	note_begin(&begin, intent);
	note_request(&begin, intent);
	const char *at = strstr(notes, begin.data);
	if (at == NULL) {
		return -1;
	}
	at += begin.len;
	if (*at < '0' || *at > '9') {
		return -1;
	}
	while (*at >= '0' && *at <= '9' && fence <= PG_INT32_MAX) {
		fence = fence * 10 + (*at++ - '0');
	}
	return (*at == US || *at == '\0') && fence <= PG_INT32_MAX ? (int32)fence : -1;
}

void native_remember_finish(const native_intent *intent, int32 fence)
{
	if (finish_count == finish_room) {
		int room = finish_room == 0 ? 8 : finish_room * 2;
		finishes = finish_room == 0 ? MemoryContextAlloc(TopTransactionContext, sizeof *finishes * (size_t)room)
		                            : repalloc(finishes, sizeof *finishes * (size_t)room);
		finish_room = room;
	}
	finishes[finish_count++] = (finished){.lock = intent->lock, .fence = fence, .by = GetCurrentSubTransactionId()};
}

static bool has_finished(uint64 lock, int32 fence)
{
	for (int i = 0; i < finish_count; i++) {
		if (finishes[i].lock == lock && finishes[i].fence == fence) {
			return true;
		}
	}
	return false;
}

/* Asks for the outcome of an intent, unless native finish has stored it. */
static void ask(const native_intent *intent, int32 fence, const native_contract *contract)
{
	if (has_finished(native_lock_number(intent), fence)) {
		return;
	}
	CommandCounterIncrement();
	PushActiveSnapshot(GetTransactionSnapshot());
	(void)OidFunctionCall4(contract->check_finished, PointerGetDatum(intent->tenant), PointerGetDatum(intent->scope),
	                       PointerGetDatum(intent->key), Int32GetDatum(fence));
	PopActiveSnapshot();
}

/* Checks the notes with unusual names, and makes them unreadable for note_check. Starts that a
 * savepoint has rolled back are no longer among the notes. */
static void check_unusual(char *notes, const native_contract *contract)
{
	for (int i = 0; i < unusual_count; i++) {
		unusual one = unusuals[i];
		char *at = strstr(notes, one.note);
		if (at == NULL) {
			continue;
		}
		for (size_t length = strlen(one.note); length > 0; length--, at++) {
			*at = *at == RS ? US : *at;
		}
		native_intent intent = {.tenant = one.tenant, .scope = one.scope, .key = one.key};
		ask(&intent, one.fence, contract);
	}
}

/* Asks for the outcome of the note's intent. A text that is not a note, for example one set by
 * hand, is ignored. */
static void note_check(char *note, const native_contract *contract)
{
	enum {
		TENANT,
		SCOPE,
		KEY,
		REQUEST,
		FENCE,
		PARTS
	};
	char *parts[PARTS] = {NULL};
	text *names[REQUEST];
	char *end;

	for (int i = 0; i < PARTS; i++) {
		note = strchr(note, US);
		if (note == NULL) {
			return;
		}
		*note++ = '\0';
		parts[i] = note;
	}
	long fence = strtol(note, &end, 10); /* the last part */
	if (fence < 1 || fence > PG_INT32_MAX || (*end != '\0' && strcmp(end, "\x1f") != 0)) {
		return;
	}
	for (int i = 0; i < REQUEST; i++) {
		names[i] = cstring_to_text(parts[i]);
	}
	native_intent intent = {.tenant = names[TENANT], .scope = names[SCOPE], .key = names[KEY]};
	ask(&intent, (int32)fence, contract);
}

/* The oldest start first, as once.unfinished's trigger does. If nothing was or can be written,
 * there is no effect. */
static void check_finished(void)
{
	const char *noted = notes_get();

	if (*noted == '\0' || !strict || (XactReadOnly && !TransactionIdIsValid(GetTopTransactionIdIfAny()))) {
		return;
	}
	const native_contract *known = native_known();
	if (known == NULL || !OidIsValid(known->check_finished)) {
		return;
	}
	native_contract contract = *known;
	char *notes = pstrdup(notes_get());
	check_unusual(notes, &contract);
	for (char *at = notes + strlen(notes); at > notes;) {
		if (*--at == RS) {
			note_check(at, &contract);
			*at = '\0';
		}
	}
}

static void transaction_ends(XactEvent event, void *unused)
{
	(void)unused;
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE) {
		check_finished();
	} else if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE) {
		finishes = NULL;
		finish_count = finish_room = 0;
		unusuals = NULL;
		unusual_count = unusual_room = 0;
	}
}

/* A savepoint's finishes go to its parent, or are dropped. */
static void savepoint_ends(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *unused)
{
	(void)unused;
	if (event != SUBXACT_EVENT_ABORT_SUB && event != SUBXACT_EVENT_COMMIT_SUB) {
		return;
	}
	int kept = 0;
	for (int i = 0; i < finish_count; i++) {
		finished one = finishes[i];
		if (one.by == mine) {
			if (event == SUBXACT_EVENT_ABORT_SUB) {
				continue;
			}
			one.by = parent;
		}
		finishes[kept++] = one;
	}
	finish_count = kept;
}

static bool strict_check(char **value, void **extra, GucSource source)
{
	bool on;

	(void)extra;
	(void)source;
	return *value == NULL || **value == '\0' || parse_bool(*value, &on);
}

static void strict_changed(const char *value, void *extra)
{
	bool on;

	(void)extra;
	strict = value == NULL || !parse_bool(value, &on) || on;
}

void native_started_init(void)
{
	DefineCustomStringVariable(NOTE, "The intents that this transaction has started.", "For pgonce's own use.",
	                           &started, "", PGC_USERSET, GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE, NULL, NULL, NULL);
	DefineCustomStringVariable(STRICT, "Whether COMMIT fails if an intent was started and not finished.",
	                           "Not set: it does with this library, and does not in SQL alone.", &strict_setting, "",
	                           PGC_USERSET, 0, strict_check, strict_changed, NULL);
	RegisterXactCallback(transaction_ends, NULL);
	RegisterSubXactCallback(savepoint_ends, NULL);
}
