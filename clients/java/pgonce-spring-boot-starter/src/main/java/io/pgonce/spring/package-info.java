// SPDX-License-Identifier: PostgreSQL
/** pgonce in Spring: {@link io.pgonce.spring.Idempotent} for controllers, and pgonce inside Spring's transactions. */
package io.pgonce.spring;
