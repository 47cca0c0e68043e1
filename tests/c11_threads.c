/* SPDX-License-Identifier: PostgreSQL */
/*
 * c11_threads.c: C11's threads made of POSIX's, in programs under ThreadSanitizer only. Such a
 * program crashes in a thread that librdkafka begins with thrd_create, which gcc's ThreadSanitizer
 * does not know; and it would not see who waits for whom by a mtx_t or cnd_t.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <threads.h>

_Static_assert(sizeof(mtx_t) >= sizeof(pthread_mutex_t) && sizeof(cnd_t) >= sizeof(pthread_cond_t),
               "glibc's own are these");

typedef struct task {
	thrd_start_t run;
	void *argument;
} task;

static int told(int error)
{
	return error == 0 ? thrd_success : error == ETIMEDOUT ? thrd_timedout : error == EBUSY ? thrd_busy : thrd_error;
}

static pthread_mutex_t *mutex_of(mtx_t *mutex)
{
	return (pthread_mutex_t *)(void *)mutex;
}

static pthread_cond_t *condition_of(cnd_t *condition)
{
	return (pthread_cond_t *)(void *)condition;
}

static void *begin(void *given)
{
	task task = *(struct task *)given;

	free(given);
	return (void *)(intptr_t)task.run(task.argument);
}

int thrd_create(thrd_t *thread, thrd_start_t run, void *argument)
{
	task *task = malloc(sizeof *task);

	if (task == NULL) {
		return thrd_nomem;
	}
	*task = (struct task){run, argument};
	int error = pthread_create(thread, NULL, begin, task);
	if (error != 0) {
		free(task);
	}
	return told(error);
}

int thrd_join(thrd_t thread, int *result)
{
	void *returned = NULL;
	int error = pthread_join(thread, &returned);

	if (error == 0 && result != NULL) {
		*result = (int)(intptr_t)returned;
	}
	return told(error);
}

int thrd_detach(thrd_t thread)
{
	return told(pthread_detach(thread));
}

int mtx_init(mtx_t *mutex, int type)
{
	pthread_mutexattr_t attributes;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_settype(&attributes,
	                          (type & mtx_recursive) != 0 ? PTHREAD_MUTEX_RECURSIVE : PTHREAD_MUTEX_NORMAL);
	int error = pthread_mutex_init(mutex_of(mutex), &attributes);
	pthread_mutexattr_destroy(&attributes);
	return told(error);
}

void mtx_destroy(mtx_t *mutex)
{
	pthread_mutex_destroy(mutex_of(mutex));
}

int mtx_lock(mtx_t *mutex)
{
	return told(pthread_mutex_lock(mutex_of(mutex)));
}

int mtx_trylock(mtx_t *mutex)
{
	return told(pthread_mutex_trylock(mutex_of(mutex)));
}

int mtx_unlock(mtx_t *mutex)
{
	return told(pthread_mutex_unlock(mutex_of(mutex)));
}

int cnd_init(cnd_t *condition)
{
	return told(pthread_cond_init(condition_of(condition), NULL));
}

void cnd_destroy(cnd_t *condition)
{
	pthread_cond_destroy(condition_of(condition));
}

int cnd_signal(cnd_t *condition)
{
	return told(pthread_cond_signal(condition_of(condition)));
}

int cnd_broadcast(cnd_t *condition)
{
	return told(pthread_cond_broadcast(condition_of(condition)));
}

int cnd_wait(cnd_t *condition, mtx_t *mutex)
{
	return told(pthread_cond_wait(condition_of(condition), mutex_of(mutex)));
}

int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *until)
{
	return told(pthread_cond_timedwait(condition_of(condition), mutex_of(mutex), until));
}
