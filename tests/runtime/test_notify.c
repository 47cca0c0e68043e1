/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_notify.c: what a service manager is told, read from a socket of ours. The clock is the
 * test's (-Wl,--wrap=runtime_now_ms).
 */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "notify.h"
#include "runtime.h"

#define LIMIT_MS 40000

int64_t __wrap_runtime_now_ms(void);

static int64_t now_ms = 1000000;
static int manager = -1;
static char last[512];

int64_t __wrap_runtime_now_ms(void)
{
	return now_ms;
}

/* What came since the last call; "": nothing. */
static const char *heard(void)
{
	ssize_t length = recv(manager, last, sizeof last - 1, MSG_DONTWAIT);

	last[length > 0 ? length : 0] = '\0';
	return last;
}

/* A manager that listens at this name. */
static void begin(const char *name, const char *watchdog_usec, const char *watchdog_pid)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name) + (name[0] == '/'));

	if (manager >= 0) {
		close(manager);
	}
	manager = socket(AF_UNIX, SOCK_DGRAM, 0);
	strcpy(address.sun_path, name);
	if (name[0] == '@') {
		address.sun_path[0] = '\0';
	} else {
		unlink(name);
	}
	assert_int_equal(bind(manager, (struct sockaddr *)&address, length), 0);
	setenv("NOTIFY_SOCKET", name, 1);
	setenv("WATCHDOG_USEC", watchdog_usec, 1);
	setenv("WATCHDOG_PID", watchdog_pid, 1);
	notify_start();
}

static const char *own_pid(void)
{
	static char text[16];

	snprintf(text, sizeof text, "%d", (int)getpid());
	return text;
}

static void test_without_a_manager_nothing_is_said(void **state)
{
	(void)state;
	unsetenv("NOTIFY_SOCKET");
	setenv("WATCHDOG_USEC", "40000000", 1);
	notify_start();
	assert_false(notify_is_watched());
	notify_ready("at work");
	notify_reloading();
	assert_int_equal(notify_wait_ms(100000), 60000);
}

static void test_no_child_speaks_in_our_name(void **state)
{
	(void)state;
	begin("@pgonce-test-notify", "40000000", own_pid());
	assert_null(getenv("NOTIFY_SOCKET"));
	assert_null(getenv("WATCHDOG_USEC"));
	assert_null(getenv("WATCHDOG_PID"));
}

static void test_it_is_ready_once_and_its_status_follows(void **state)
{
	(void)state;
	notify_status("too early");
	assert_string_equal(heard(), "");
	notify_ready("no database\n");
	assert_string_equal(heard(), "READY=1\nSTATUS=no database\n");
	notify_ready("no database\n");
	assert_string_equal(heard(), "");
	notify_status("at work");
	assert_string_equal(heard(), "STATUS=at work\n");
	notify_status("at work");
	assert_string_equal(heard(), "");
}

static void test_a_reload_ends_with_ready(void **state)
{
	(void)state;
	notify_reloading();
	assert_int_equal(strncmp(heard(), "RELOADING=1\nMONOTONIC_USEC=", 27), 0);
	notify_status("no database");
	assert_string_equal(heard(), "");
	notify_ready("at work");
	assert_string_equal(heard(), "READY=1\nSTATUS=at work\n");
}

static void test_a_thread_that_does_not_work_does_not_feed_the_watchdog(void **state)
{
	(void)state;
	assert_true(notify_is_watched());
	notify_alive();
	assert_string_equal(heard(), "");
	notify_work_begin();
	notify_alive();
	assert_string_equal(heard(), "WATCHDOG=1\n");
	notify_alive();
	assert_string_equal(heard(), ""); /* not each time */
	now_ms += LIMIT_MS / 4;
	notify_alive();
	assert_string_equal(heard(), "WATCHDOG=1\n");
	assert_int_equal(notify_wait_ms(100000), LIMIT_MS / 4);
	assert_int_equal(notify_wait_ms(7), 7);
	notify_work_end();
	now_ms += LIMIT_MS;
	notify_alive();
	assert_string_equal(heard(), "");
}

typedef struct second {
	sem_t begun, may_end, ended;
} second;

static void *hang(void *argument)
{
	second *second = argument;

	notify_work_begin();
	notify_alive();
	sem_post(&second->begun);
	sem_wait(&second->may_end);
	notify_work_end();
	sem_post(&second->ended);
	return NULL;
}

static void test_one_thread_that_hangs_is_not_hidden_by_another(void **state)
{
	pthread_t thread;
	second second;

	(void)state;
	sem_init(&second.begun, 0, 0);
	sem_init(&second.may_end, 0, 0);
	sem_init(&second.ended, 0, 0);
	notify_work_begin();
	now_ms += LIMIT_MS;
	assert_int_equal(pthread_create(&thread, NULL, hang, &second), 0);
	sem_wait(&second.begun);
	notify_alive();
	while (heard()[0] != '\0') {
	}
	for (int64_t passed_ms = 0; passed_ms <= 3 * LIMIT_MS; passed_ms += LIMIT_MS / 8) {
		now_ms += LIMIT_MS / 8;
		notify_alive();
		bool is_fed = heard()[0] != '\0';
		/* Silence is allowed for half of the limit. */
		assert_true(!is_fed || passed_ms < LIMIT_MS / 2);
	}
	sem_post(&second.may_end);
	sem_wait(&second.ended);
	notify_alive();
	assert_string_equal(heard(), "WATCHDOG=1\n");
	pthread_join(thread, NULL);
	notify_work_end();
}

static void test_a_watchdog_of_another_process_is_none(void **state)
{
	(void)state;
	begin("/tmp/pgonce-test-notify.socket", "40000000", "1");
	assert_false(notify_is_watched());
	notify_status("by a path");
	assert_string_equal(heard(), "STATUS=by a path\n");
	unlink("/tmp/pgonce-test-notify.socket");
}

static void test_numbers_that_are_wrong_are_no_watchdog(void **state)
{
	static const char *const wrong[] = {"", "-1", "4000000x", "99999999999999999999999"};

	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		begin("@pgonce-test-notify-2", wrong[i], own_pid());
		assert_false(notify_is_watched());
	}
}

static void test_it_stops_once_and_is_ready_no_more(void **state)
{
	(void)state;
	notify_stopping();
	assert_string_equal(heard(), "STOPPING=1\n");
	notify_stopping();
	notify_ready("again");
	assert_string_equal(heard(), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_without_a_manager_nothing_is_said),
	    cmocka_unit_test(test_no_child_speaks_in_our_name),
	    cmocka_unit_test(test_it_is_ready_once_and_its_status_follows),
	    cmocka_unit_test(test_a_reload_ends_with_ready),
	    cmocka_unit_test(test_a_thread_that_does_not_work_does_not_feed_the_watchdog),
	    cmocka_unit_test(test_one_thread_that_hangs_is_not_hidden_by_another),
	    cmocka_unit_test(test_a_watchdog_of_another_process_is_none),
	    cmocka_unit_test(test_numbers_that_are_wrong_are_no_watchdog),
	    cmocka_unit_test(test_it_stops_once_and_is_ready_no_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
