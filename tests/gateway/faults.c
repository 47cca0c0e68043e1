/* SPDX-License-Identifier: PostgreSQL */
/*
 * faults.c: makes a chosen allocation of the module fail, in the module that tools/coverage.py
 * builds; the linker sends them here. The file that PGONCE_FAULTS names holds the countdown, which
 * test_memory.py sets: the allocation that brings it to 0 fails, below 1 none does.
 */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile int32_t *countdown;

/*
 * Found once, when nginx reads its configuration: a worker has another environment, and this
 * memory.
 */
static int32_t *find_countdown(void)
{
	static int32_t none = 0;
	const char *path = getenv("PGONCE_FAULTS");
	int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
	void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*countdown), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (fd >= 0) {
		(void)close(fd);
	}
	return at == MAP_FAILED ? &none : at;
}

/* What counts branches allocates at the end, and does not look whether it got anything. */
__attribute__((destructor)) static void end(void)
{
	static int32_t none = 0;

	countdown = &none;
}

static int fails(void)
{
	if (countdown == NULL) {
		countdown = find_countdown();
	}
	if (*countdown > 0 && --*countdown == 0) {
		errno = ENOMEM;
		return 1;
	}
	return 0;
}

/*
 * What an allocation or a step of nginx's that allocates returns, and what it returns where it
 * fails.
 */
#define FAULT(type, name, failure, parameters, arguments)                                                              \
	type __real_##name parameters;                                                                                     \
	type __wrap_##name parameters;                                                                                     \
	type __wrap_##name parameters                                                                                      \
	{                                                                                                                  \
		return fails() ? (failure) : __real_##name arguments;                                                          \
	}

/* It takes a parameter's pointer for a product. */
/* clang-format off */
FAULT(void *, malloc, NULL, (size_t size), (size))
FAULT(void *, calloc, NULL, (size_t count, size_t size), (count, size))
FAULT(void *, realloc, NULL, (void *old, size_t size), (old, size))
FAULT(char *, strdup, NULL, (const char *text), (text))
FAULT(void *, ngx_alloc, NULL, (size_t size, ngx_log_t *log), (size, log))
FAULT(void *, ngx_calloc, NULL, (size_t size, ngx_log_t *log), (size, log))
FAULT(void *, ngx_palloc, NULL, (ngx_pool_t *pool, size_t size), (pool, size))
FAULT(void *, ngx_pnalloc, NULL, (ngx_pool_t *pool, size_t size), (pool, size))
FAULT(void *, ngx_pcalloc, NULL, (ngx_pool_t *pool, size_t size), (pool, size))
FAULT(void *, ngx_array_push, NULL, (ngx_array_t *array), (array))
FAULT(void *, ngx_list_push, NULL, (ngx_list_t *list), (list))
FAULT(ngx_array_t *, ngx_array_create, NULL, (ngx_pool_t *pool, ngx_uint_t count, size_t size), (pool, count, size))
FAULT(ngx_pool_cleanup_t *, ngx_pool_cleanup_add, NULL, (ngx_pool_t *pool, size_t size), (pool, size))
FAULT(void *, ngx_slab_alloc_locked, NULL, (ngx_slab_pool_t *pool, size_t size), (pool, size))
FAULT(void *, ngx_slab_calloc, NULL, (ngx_slab_pool_t *pool, size_t size), (pool, size))
FAULT(ngx_shm_zone_t *, ngx_shared_memory_add, NULL, (ngx_conf_t *cf, ngx_str_t *name, size_t size, void *tag),
      (cf, name, size, tag))
FAULT(ngx_connection_t *, ngx_get_connection, NULL, (ngx_socket_t fd, ngx_log_t *log), (fd, log))
FAULT(ngx_http_variable_t *, ngx_http_add_variable, NULL, (ngx_conf_t *cf, ngx_str_t *name, ngx_uint_t flags),
      (cf, name, flags))
FAULT(ngx_int_t, ngx_http_compile_complex_value, NGX_ERROR, (ngx_http_compile_complex_value_t *value), (value))
FAULT(ngx_int_t, ngx_http_complex_value, NGX_ERROR,
      (ngx_http_request_t *r, ngx_http_complex_value_t *value, ngx_str_t *out), (r, value, out))
FAULT(ngx_int_t, ngx_http_discard_request_body, NGX_HTTP_INTERNAL_SERVER_ERROR, (ngx_http_request_t *r), (r))
/* clang-format on */
