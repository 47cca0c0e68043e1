/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_bytes.c: growing buffers with a maximum. They outlive a request, so they are in no
 * pool.
 */
#include "ngx_http_once.h"

enum {
	ROOM_BYTES_MIN = 256
};

void gate_bytes_free(gate_bytes *bytes)
{
	ngx_free(bytes->data);
	*bytes = (gate_bytes){0};
}

ngx_int_t gate_bytes_add(gate_bytes *bytes, const u_char *data, size_t length, size_t length_max)
{
	if (length > length_max || bytes->length > length_max - length) {
		return NGX_DECLINED;
	}
	if (bytes->length + length > bytes->room) {
		size_t room = ngx_max(bytes->length + length, ngx_min(bytes->room * 2, length_max));
		u_char *larger;

		room = ngx_max(room, ROOM_BYTES_MIN);
		larger = realloc(bytes->data, room);
		if (larger == NULL) {
			return NGX_ERROR;
		}
		bytes->data = larger;
		bytes->room = room;
	}
	if (length > 0) {
		ngx_memcpy(bytes->data + bytes->length, data, length);
		bytes->length += length;
	}
	assert(bytes->length <= bytes->room);
	return NGX_OK;
}

ngx_int_t gate_bytes_chain(ngx_http_request_t *r, const gate_bytes *bytes, ngx_chain_t *out)
{
	ngx_buf_t *buf = ngx_calloc_buf(r->pool);

	if (buf == NULL) {
		return NGX_ERROR;
	}
	if (bytes->length > 0) {
		buf->pos = buf->start = bytes->data;
		buf->last = buf->end = bytes->data + bytes->length;
		buf->memory = 1;
	}
	buf->last_buf = 1;
	buf->last_in_chain = 1;
	*out = (ngx_chain_t){.buf = buf};
	return NGX_OK;
}
