/* SPDX-License-Identifier: PostgreSQL */
/* supervise.c: see supervise.h. One loop over the signals, the heartbeat, and CMD's two
 * streams; nothing in it blocks but poll. */
#include <errno.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "supervise.h"

enum {
	/* POSIX: a pipe that poll reports as writable accepts this much (PIPE_BUF) without blocking. */
	WRITE_BYTES_MAX = 4096,
	READ_BYTES_MAX = 16384,
	DRAIN_MS = 1000
};

typedef struct stream {
	int from; /* -1: ended */
	int to;
	char kind;
	bool reader_gone; /* the reader of the output has gone: CMD is still captured */
	int write_error;  /* the errno of another failure */
	size_t start;
	size_t length;
	unsigned char pending[READ_BYTES_MAX];
} stream;

static void stream_close(stream *stream)
{
	if (stream->from >= 0) {
		close(stream->from);
		stream->from = -1;
	}
}

static void stream_read(stream *stream, capture *capture)
{
	ssize_t got = read(stream->from, stream->pending, sizeof stream->pending);

	if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
		return;
	}
	if (got <= 0) {
		stream_close(stream);
		return;
	}
	capture_add(capture, stream->kind, stream->pending, (size_t)got);
	stream->start = 0;
	stream->length = stream->reader_gone ? 0 : (size_t)got;
}

static void stream_write(stream *stream)
{
	size_t length = stream->length < WRITE_BYTES_MAX ? stream->length : WRITE_BYTES_MAX;
	ssize_t put = write(stream->to, stream->pending + stream->start, length);

	if (put < 0 && (errno == EINTR || errno == EAGAIN)) {
		return;
	}
	if (put < 0) {
		stream->write_error = errno == EPIPE ? 0 : errno;
		stream->reader_gone = true;
		stream->length = 0;
		return;
	}
	stream->start += (size_t)put;
	stream->length -= (size_t)put;
}

/*
 * Reads the pending signals. CMD's end is stored; other signals are passed on, or, once it has
 * ended, stop the passing on of output.
 */
static void take_signals(supervision *supervision, bool *ended, stream *streams)
{
	struct signalfd_siginfo info;

	while (read(supervision->signals->fd, &info, sizeof info) == sizeof info) {
		if (info.ssi_signo == SIGCHLD) {
			continue;
		}
		if (!*ended && !child_has_it_already(supervision->child, info.ssi_code)) {
			child_signal(supervision->child, (int)info.ssi_signo);
		} else if (*ended) {
			for (int i = 0; i < 2; i++) {
				streams[i].reader_gone = true;
				streams[i].length = 0;
			}
		}
	}
	if (!*ended && waitpid(supervision->child->pid, &supervision->wait_status, WNOHANG) == supervision->child->pid) {
		*ended = true;
	}
}

static void take_heartbeat(supervision *supervision, bool ended)
{
	char word = heartbeat_take(supervision->heartbeat);

	if (word == HEARTBEAT_LOST) {
		supervision->lease_lost = true;
		if (!ended) {
			child_signal(supervision->child, SIGTERM);
		}
	} else if (word == HEARTBEAT_LATE) {
		cli_note(supervision->invocation,
		         "the lease has passed without a renewal: the database does not answer; CMD continues, trying again");
	}
}

/* Waits for one event and handles it. 0, or an errno. */
static int turn(supervision *supervision, stream *streams, bool *ended, int wait_ms)
{
	struct pollfd fds[6] = {{.fd = supervision->signals->fd, .events = POLLIN},
	                        {.fd = heartbeat_fd(supervision->heartbeat), .events = POLLIN}};

	/*
	 * A stream is read only after its earlier data is written: a slow reader slows CMD, as without
	 * pgonce.
	 */
	for (int i = 0; i < 2; i++) {
		fds[2 + i] = (struct pollfd){.fd = streams[i].length == 0 ? streams[i].from : -1, .events = POLLIN};
		fds[4 + i] = (struct pollfd){.fd = streams[i].length > 0 ? streams[i].to : -1, .events = POLLOUT};
	}
	if (poll(fds, 6, wait_ms) < 0) {
		return errno == EINTR ? 0 : errno;
	}
	if (fds[1].revents != 0) {
		take_heartbeat(supervision, *ended);
	}
	for (int i = 0; i < 2; i++) {
		if (fds[2 + i].revents != 0) {
			stream_read(&streams[i], supervision->capture);
		}
		if (fds[4 + i].revents != 0) {
			stream_write(&streams[i]);
		}
	}
	if (fds[0].revents != 0) {
		take_signals(supervision, ended, streams);
	}
	return 0;
}

int supervise(supervision *supervision)
{
	stream streams[2] = {{.from = supervision->child->out, .to = STDOUT_FILENO, .kind = 'o'},
	                     {.from = supervision->child->err, .to = STDERR_FILENO, .kind = 'e'}};
	bool ended = false;
	int64_t drain_ms = DRAIN_MS;
	int problem = 0;

	while (problem == 0) {
		bool unwritten = streams[0].length + streams[1].length > 0;
		if (ended && !unwritten && streams[0].from < 0 && streams[1].from < 0) {
			break;
		}
		if (!ended || unwritten) {
			problem = turn(supervision, streams, &ended, -1);
		} else if (drain_ms > 0) {
			/*
			 * Only time spent waiting for more output counts, otherwise a slow reader would lose
			 * CMD's last output.
			 */
			int64_t started_ms = monotonic_ms();
			problem = turn(supervision, streams, &ended, (int)drain_ms);
			drain_ms -= monotonic_ms() - started_ms;
		} else {
			/*
			 * Children of CMD hold its streams open. Their later output is not part of the outcome.
			 */
			stream_close(&streams[0]);
			stream_close(&streams[1]);
		}
	}
	stream_close(&streams[0]);
	stream_close(&streams[1]);
	supervision->write_error = streams[0].write_error != 0 ? streams[0].write_error : streams[1].write_error;
	return problem;
}
