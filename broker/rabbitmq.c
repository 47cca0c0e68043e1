/* SPDX-License-Identifier: PostgreSQL */
/* rabbitmq.c: see rabbitmq.h. */
#include "rabbitmq.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "notify.h"

#define FRAME_BYTES_MAX 131072
#define GOODBYE_MS 1000

static const broker_scheme scheme = {
    .plain = "amqp", .tls = "amqps", .plain_port = 5672, .tls_port = 5671, .has_path = true};

bool rabbitmq_address_read(const config *config, const config_section *section, const rabbitmq_options *options,
                           broker_address **result, char **problem)
{
	return broker_address_read(config, section, &options->broker, &scheme, result, problem);
}

/* ---- problem texts */

void rabbitmq_status_problem(const char *what, int status, char problem[BROKER_PROBLEM_BYTES])
{
	snprintf(problem, BROKER_PROBLEM_BYTES, "%s: %s", what, amqp_error_string2(status));
}

static void close_problem(const char *what, int code, amqp_bytes_t text, char problem[BROKER_PROBLEM_BYTES])
{
	snprintf(problem, BROKER_PROBLEM_BYTES, "%s: %d %.*s", what, code, (int)(text.len < 200 ? text.len : 200),
	         (const char *)text.bytes);
}

void rabbitmq_reply_problem(const char *what, amqp_rpc_reply_t reply, char problem[BROKER_PROBLEM_BYTES])
{
	if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION) {
		rabbitmq_status_problem(what, reply.library_error, problem);
	} else if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD) {
		const amqp_connection_close_t *close = reply.reply.decoded;
		close_problem(what, close->reply_code, close->reply_text, problem);
	} else if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
		const amqp_channel_close_t *close = reply.reply.decoded;
		close_problem(what, close->reply_code, close->reply_text, problem);
	} else {
		snprintf(problem, BROKER_PROBLEM_BYTES, "%s: an unexpected answer", what);
	}
}

/* ---- connecting */

/*
 * OpenSSL itself checks the host name: librabbitmq's own check does not know IP addresses, and does
 * not load the system's certificates.
 */
static amqp_socket_t *tls_socket(amqp_connection_state_t connection, const broker_address *address, const char *host,
                                 char problem[BROKER_PROBLEM_BYTES])
{
	amqp_socket_t *socket = amqp_ssl_socket_new(connection);
	int status = AMQP_STATUS_OK;
	unsigned char binary[16];

	if (socket == NULL) {
		rabbitmq_status_problem("TLS", AMQP_STATUS_NO_MEMORY, problem);
		return NULL;
	}
	SSL_CTX *context = amqp_ssl_socket_get_context(socket);
	X509_VERIFY_PARAM *expected = SSL_CTX_get0_param(context);
	bool is_address = inet_pton(AF_INET, host, binary) == 1 || inet_pton(AF_INET6, host, binary) == 1;
	amqp_ssl_socket_set_verify_peer(socket, 1);
	amqp_ssl_socket_set_verify_hostname(socket, 0);
	if ((is_address ? X509_VERIFY_PARAM_set1_ip_asc(expected, host) : X509_VERIFY_PARAM_set1_host(expected, host, 0)) !=
	    1) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "TLS: cannot require a certificate for %s", host);
		return NULL;
	}
	if (address->ca_file == NULL) {
		SSL_CTX_set_default_verify_paths(context);
	} else {
		status = amqp_ssl_socket_set_cacert(socket, address->ca_file);
	}
	if (status == AMQP_STATUS_OK && address->certificate_file != NULL) {
		status = amqp_ssl_socket_set_key(socket, address->certificate_file, address->key_file);
	}
	if (status != AMQP_STATUS_OK) {
		rabbitmq_status_problem(address->ca_file == NULL ? "certificate_file, key_file"
		                                                 : "ca_file, certificate_file, key_file",
		                        status, problem);
		return NULL;
	}
	return socket;
}

static amqp_rpc_reply_t login(amqp_connection_state_t connection, const broker_address *address, const char *name)
{
	static const char *const can[] = {"publisher_confirms", "basic.nack", "connection.blocked",
	                                  "consumer_cancel_notify", "exchange_exchange_bindings"};
	amqp_table_entry_t capabilities[sizeof can / sizeof can[0]];
	const char *vhost = address->path == NULL || *address->path == '\0' ? "/" : address->path;

	for (size_t i = 0; i < sizeof can / sizeof can[0]; i++) {
		capabilities[i] = (amqp_table_entry_t){.key = amqp_cstring_bytes(can[i]),
		                                       .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value = {.boolean = 1}}};
	}
	amqp_table_t table = {.num_entries = (int)(sizeof can / sizeof can[0]), .entries = capabilities};
	amqp_table_entry_t properties[] = {
	    {.key = amqp_cstring_bytes("capabilities"),
	     .value = {.kind = AMQP_FIELD_KIND_TABLE, .value = {.table = table}}},
	    {.key = amqp_cstring_bytes("connection_name"),
	     .value = {.kind = AMQP_FIELD_KIND_UTF8, .value = {.bytes = amqp_cstring_bytes(name)}}},
	    {.key = amqp_cstring_bytes("product"),
	     .value = {.kind = AMQP_FIELD_KIND_UTF8, .value = {.bytes = amqp_cstring_bytes("pgonce")}}},
	};
	amqp_table_t all = {.num_entries = (int)(sizeof properties / sizeof properties[0]), .entries = properties};
	if (address->user == NULL && address->certificate_file != NULL) {
		/* The certificate identifies the user. */
		return amqp_login_with_properties(connection, vhost, 1, FRAME_BYTES_MAX, RABBITMQ_HEARTBEAT_S, &all,
		                                  AMQP_SASL_METHOD_EXTERNAL, "");
	}
	return amqp_login_with_properties(connection, vhost, 1, FRAME_BYTES_MAX, RABBITMQ_HEARTBEAT_S, &all,
	                                  AMQP_SASL_METHOD_PLAIN, address->user == NULL ? "guest" : address->user,
	                                  address->user == NULL       ? "guest"
	                                  : address->password == NULL ? ""
	                                                              : address->password);
}

bool rabbitmq_channel_open(amqp_connection_state_t connection, char problem[BROKER_PROBLEM_BYTES])
{
	if (amqp_channel_open(connection, RABBITMQ_CHANNEL) != NULL) {
		return true;
	}
	rabbitmq_reply_problem("cannot open a channel", amqp_get_rpc_reply(connection), problem);
	return false;
}

static bool connect_one(amqp_connection_state_t connection, const broker_address *address, const broker_host *host,
                        const char *name, int timeout_ms, _Atomic int *descriptor, char problem[BROKER_PROBLEM_BYTES])
{
	const struct timeval time = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
	char what[128];

	snprintf(what, sizeof what, "cannot connect to %s:%d", host->name, host->port);
	amqp_socket_t *socket =
	    address->tls ? tls_socket(connection, address, host->name, problem) : amqp_tcp_socket_new(connection);
	if (socket == NULL) {
		return false;
	}
	int status = amqp_socket_open_noblock(socket, host->name, host->port, &time);
	if (status == AMQP_STATUS_SSL_PEER_VERIFY_FAILED) {
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "%s: its certificate is for another host, or not signed by a CA that %s trusts", what,
		         address->ca_file == NULL ? "the system" : "ca_file");
		return false;
	}
	if (status == AMQP_STATUS_SOCKET_ERROR) {
		/* librabbitmq does not report the reason. */
		snprintf(problem, BROKER_PROBLEM_BYTES, "%s: no server listens there, or it cannot be reached", what);
		return false;
	}
	if (status != AMQP_STATUS_OK) {
		rabbitmq_status_problem(what, status, problem);
		return false;
	}
	if (descriptor != NULL) {
		atomic_store(descriptor, amqp_get_sockfd(connection));
	}
	amqp_set_handshake_timeout(connection, &time);
	amqp_set_rpc_timeout(connection, &time);
	amqp_rpc_reply_t reply = login(connection, address, name);
	if (reply.reply_type != AMQP_RESPONSE_NORMAL) {
		snprintf(what, sizeof what, "cannot log in at %s:%d", host->name, host->port);
		rabbitmq_reply_problem(what, reply, problem);
		return false;
	}
	return rabbitmq_channel_open(connection, problem);
}

amqp_connection_state_t rabbitmq_connect(const broker_address *address, const char *name, int timeout_ms,
                                         _Atomic int *descriptor, char problem[BROKER_PROBLEM_BYTES])
{
	for (size_t i = 0; i < address->host_count; i++) {
		notify_alive(); /* all of them together may take longer than a service manager waits */
		amqp_connection_state_t connection = amqp_new_connection();
		if (connection == NULL) {
			rabbitmq_status_problem("cannot connect", AMQP_STATUS_NO_MEMORY, problem);
			return NULL;
		}
		if (connect_one(connection, address, &address->hosts[i], name, timeout_ms, descriptor, problem)) {
			return connection;
		}
		if (descriptor != NULL) {
			atomic_store(descriptor, -1);
		}
		amqp_destroy_connection(connection);
	}
	return NULL;
}

void rabbitmq_close(amqp_connection_state_t connection, bool polite)
{
	const struct timeval time = {.tv_sec = GOODBYE_MS / 1000, .tv_usec = GOODBYE_MS % 1000 * 1000};

	if (connection == NULL) {
		return;
	}
	if (polite) {
		amqp_set_rpc_timeout(connection, &time);
		(void)amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
	}
	amqp_destroy_connection(connection);
}

/* ---- closing by the broker */

bool rabbitmq_frame_closes(amqp_connection_state_t connection, const amqp_frame_t *frame, int *code,
                           bool *connection_too, char problem[BROKER_PROBLEM_BYTES])
{
	amqp_channel_close_ok_t channel_answer = {0};
	amqp_connection_close_ok_t connection_answer = {0};

	if (frame->frame_type != AMQP_FRAME_METHOD) {
		return false;
	}
	if (frame->payload.method.id == AMQP_CHANNEL_CLOSE_METHOD) {
		const amqp_channel_close_t *close = frame->payload.method.decoded;
		*code = close->reply_code;
		close_problem("the broker closed the channel", close->reply_code, close->reply_text, problem);
		*connection_too = amqp_send_method(connection, frame->channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &channel_answer) !=
		                  AMQP_STATUS_OK;
		return true;
	}
	if (frame->payload.method.id == AMQP_CONNECTION_CLOSE_METHOD) {
		const amqp_connection_close_t *close = frame->payload.method.decoded;
		*code = close->reply_code;
		*connection_too = true;
		close_problem("the broker closed the connection", close->reply_code, close->reply_text, problem);
		(void)amqp_send_method(connection, 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &connection_answer);
		return true;
	}
	return false;
}
