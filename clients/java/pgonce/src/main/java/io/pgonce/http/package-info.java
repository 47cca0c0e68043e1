// SPDX-License-Identifier: PostgreSQL
/** What the HTTP door decides, without a server: the gateway's rules (lib/http), for the middleware of any framework. */
package io.pgonce.http;
