/* SPDX-License-Identifier: PostgreSQL */
/*
 * modules.c: what nginx looks up in a dynamic module: which modules it holds, and their place. After copy_filter (what arrives is
 * in memory) and before headers_filter and gzip (what is stored is neither compressed nor holds what add_header adds).
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
