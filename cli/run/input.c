/* SPDX-License-Identifier: PostgreSQL */
/* input.c: see input.h. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "input.h"

/* A file without a name, gone with its last descriptor. */
static int temporary_file(void)
{
	const char *directory = getenv("TMPDIR");
	char *path = cli_format("%s/pgonce-input-XXXXXX", directory != NULL && directory[0] != '\0' ? directory : "/tmp");
	int fd = mkostemp(path, O_CLOEXEC);

	if (fd >= 0) {
		unlink(path);
	}
	free(path);
	return fd;
}

/* Copies and hashes. 0 or an errno. */
static int copy(int from, int to, EVP_MD_CTX *hash)
{
	unsigned char block[65536];

	for (;;) {
		ssize_t got = read(from, block, sizeof block);
		if (got == 0) {
			return 0;
		}
		if (got < 0 && errno == EINTR) {
			continue;
		}
		if (got < 0) {
			return errno;
		}
		for (ssize_t put = 0; put < got;) {
			ssize_t now = write(to, block + put, (size_t)(got - put));
			if (now < 0 && errno != EINTR) {
				return errno;
			}
			put += now > 0 ? now : 0;
		}
		if (EVP_DigestUpdate(hash, block, (size_t)got) != 1) {
			return ENOMEM;
		}
	}
}

int input_open(const cli_invocation *invocation, const char *path, unsigned char digest[INPUT_DIGEST_BYTES], int *fd)
{
	if (path == NULL) {
		*fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
		return *fd >= 0 ? CLI_OK : cli_fail(invocation, CLI_FAILED, NULL, "cannot open /dev/null: %s", strerror(errno));
	}
	int from = strcmp(path, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(path, O_RDONLY | O_CLOEXEC);
	if (from < 0) {
		return cli_fail(invocation, CLI_USAGE, NULL, "option --input: cannot read %s: %s", path, strerror(errno));
	}
	int to = temporary_file();
	EVP_MD_CTX *hash = EVP_MD_CTX_new();
	int problem = to < 0                                                             ? errno
	              : hash == NULL || EVP_DigestInit_ex(hash, EVP_sha256(), NULL) != 1 ? ENOMEM
	                                                                                 : copy(from, to, hash);
	if (problem == 0 && (EVP_DigestFinal_ex(hash, digest, NULL) != 1 || lseek(to, 0, SEEK_SET) != 0)) {
		problem = EIO;
	}
	EVP_MD_CTX_free(hash);
	close(from);
	if (problem == 0) {
		*fd = to;
		return CLI_OK;
	}
	if (to >= 0) {
		close(to);
	}
	return cli_fail(invocation, CLI_USAGE, NULL, "option --input: cannot copy %s: %s", path, strerror(problem));
}

static void add_bytes(bytes *request, const void *data, size_t length)
{
	unsigned char head[8];

	for (int i = 0; i < 8; i++) {
		head[i] = (unsigned char)((uint64_t)length >> (8 * (7 - i)));
	}
	bool fits = bytes_append(request, head, sizeof head) && bytes_append(request, data, length);
	assert(fits);
	(void)fits;
}

bytes input_request(char *const *argv, int count, const unsigned char *digest)
{
	static const char version[] = "pgonce run 1";
	/* The kernel bounds a command line to a few megabytes. */
	bytes request = {.bytes_max = SIZE_MAX / 2};
	char words[12];

	snprintf(words, sizeof words, "%d", count);
	add_bytes(&request, version, sizeof version - 1);
	add_bytes(&request, words, strlen(words));
	for (int i = 0; i < count; i++) {
		add_bytes(&request, argv[i], strlen(argv[i]));
	}
	if (digest != NULL) {
		add_bytes(&request, digest, INPUT_DIGEST_BYTES);
	}
	return request;
}
