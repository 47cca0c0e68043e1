/* SPDX-License-Identifier: PostgreSQL */
/* warehouse.c: see warehouse.h. */
#include "warehouse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "install.h"

/* ---- The database ---- */

static int open_database(const server *server, const char *database, PGconn **connection)
{
	char *dsn = server_dsn(server, database);
	int result = connect_plain(server->invocation, dsn, connection);

	free(dsn);
	return result;
}

static int make_empty(const server *server)
{
	PGconn *connection = NULL;
	PGresult *found = NULL;
	const char *name = WAREHOUSE_DATABASE;
	int result = open_database(server, "postgres", &connection);

	if (result == CLI_OK) {
		result = connect_run(server->invocation, connection, SQL_DATABASE_EXISTS, 1, &name,
		                     "cannot look for the database", &found);
	}
	if (result == CLI_OK && PQntuples(found) == 0) {
		result = connect_run(server->invocation, connection, SQL_CREATE_WAREHOUSE, 0, NULL, "cannot make the database",
		                     NULL);
	}
	PQclear(found);
	PQfinish(connection);
	return result;
}

static void ignore(void *nothing, const char *notice)
{
	(void)nothing;
	(void)notice;
}

/* The example's file is a script: more than one statement. It says of what is there already that it is there. */
static int run_script(const server *server, PGconn *connection)
{
	PQsetNoticeProcessor(connection, ignore, NULL);
	PGresult *done = PQexec(connection, sql_queries[SQL_STOCK].text);
	int result = CLI_OK;

	if (PQresultStatus(done) != PGRES_COMMAND_OK) {
		result = cli_fail(server->invocation, CLI_FAILED, NULL, "cannot make the warehouse's tables: %s",
		                  PQerrorMessage(connection));
	}
	PQclear(done);
	return result;
}

int warehouse_make_database(const server *server)
{
	PGconn *connection = NULL;
	install_result installed;
	int result = make_empty(server);

	if (result == CLI_OK) {
		result = open_database(server, WAREHOUSE_DATABASE, &connection);
	}
	if (result == CLI_OK) {
		result = install_contract(server->invocation, connection, &installed);
	}
	if (result == CLI_OK) {
		result = run_script(server, connection);
	}
	PQfinish(connection);
	return result;
}

/* ---- The configuration ---- */

static const char configuration[] =
    "# What pgonce dev runs: examples/orders/pgonce.conf with its own servers. Written anew at each start.\n"
    "\n"
    "[relay orders]\n"
    "dsn   = %s\n"
    "sink  = nats\n"
    "url   = %s\n"
    "route = order.* -> {topic}\n"
    "\n"
    "[consume warehouse]\n"
    "dsn     = %s\n"
    "source  = nats\n"
    "url     = %s\n"
    "stream  = " WAREHOUSE_STREAM "\n"
    "subject = order.>\n"
    "handler = shop.take_stock\n";

int warehouse_write_config(const server *server, const char *path, const char *url)
{
	char *shop = server_dsn(server, SERVER_DATABASE);
	char *warehouse = server_dsn(server, WAREHOUSE_DATABASE);
	FILE *file = fopen(path, "we");
	int result = CLI_OK;

	if (file == NULL || fprintf(file, configuration, shop, url, warehouse, url) < 0 || fclose(file) != 0) {
		result = cli_fail(server->invocation, CLI_FAILED, NULL, "cannot write %s: %s", path, strerror(errno));
	}
	free(warehouse);
	free(shop);
	return result;
}
