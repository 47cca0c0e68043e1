/* SPDX-License-Identifier: PostgreSQL */
/*
 * notify.h: what a service manager (systemd, Type=notify) is told: ready, reloading, stopping, and
 * that its threads work. The protocol is a datagram of lines to the socket in NOTIFY_SOCKET, and
 * stable by promise. So no library is linked for it: libsystemd would bring its own libraries into
 * every process. Without NOTIFY_SOCKET all of this does nothing. Any thread may call it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Reads and removes the environment's NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, so that no
 * child speaks in our name. Once, before the first thread. A socket that cannot be used is ignored:
 * then the manager decides what silence means.
 */
void notify_start(void);

/* READY=1 with that status, a line. Nothing if the manager knows both already. */
void notify_ready(const char *status);
/* Another status; nothing before READY=1, and during a reload, which READY=1 ends. */
void notify_status(const char *status);
void notify_reloading(void);
/* Once; async-signal-safe. */
void notify_stopping(void);

/*
 * The watchdog. A thread that works begins, says often that it is alive, and ends. The manager is
 * told as long as all of them are, by the threads that work alone.
 * notify_alive of other threads does nothing.
 */
void notify_work_begin(void);
void notify_work_end(void);
void notify_alive(void);
bool notify_is_watched(void);
/* For poll(2) and the like in such a thread: `milliseconds`, but not so long that it is missed. */
int notify_wait_ms(int64_t milliseconds);
