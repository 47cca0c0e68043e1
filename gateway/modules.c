/* SPDX-License-Identifier: PostgreSQL */
/*
 * modules.c: nginx's place for the module: after copy_filter (answers are in memory), before
 * headers_filter and gzip (stored answers are not compressed, and have no line of add_header).
 */
#include <ngx_config.h>

#include <ngx_core.h>

extern ngx_module_t ngx_http_once_module;
extern ngx_module_t *ngx_modules[];
extern char *ngx_module_names[];
extern char *ngx_module_order[];

ngx_module_t *ngx_modules[] = {&ngx_http_once_module, NULL};
char *ngx_module_names[] = {"ngx_http_once_module", NULL};
char *ngx_module_order[] = {"ngx_http_once_module", "ngx_http_copy_filter_module", NULL};
