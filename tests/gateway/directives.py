# SPDX-License-Identifier: PostgreSQL
"""The directives of nginx's own http modules, one row or more for each that touches a request or its answer; and those that touch neither.
A row is a location's settings, which must make no difference between a protected location and one that is not: see test_differential.py."""

import dataclasses
import gzip

from harness.upstream import Answer

from .door import BODY

PAGE = b"<html><body>" + b"one two three <!-- \xe9 --> " * 40 + b"</body></html>\n"
HEADERS = (
    ("Content-Type", "text/html"),
    ("ETag", '"e1"'),
    ("Last-Modified", "Mon, 06 Nov 2023 10:00:00 GMT"),
    ("X-Service", "yes"),
    ("X-Hidden", "no"),
)
WHOLE = Answer(200, HEADERS, PAGE)
MADE = Answer(201, HEADERS, PAGE)
PACKED = Answer(200, HEADERS + (("Content-Encoding", "gzip"),), gzip.compress(PAGE, mtime=0))
LARGE = Answer(200, HEADERS, PAGE * 300)
OLD = [("User-Agent", "Mozilla/4.0 (compatible; MSIE 5.0)")]
COOKIES = Answer(201, HEADERS + (("Set-Cookie", "a=b; Path=/one; Domain=one.example"),), PAGE)
CACHED = Answer(
    201,
    HEADERS
    + (("Cache-Control", "no-cache"), ("Cache-Control", "max-age=9"), ("Expires", "Mon, 06 Nov 2034 10:00:00 GMT"))
    + (("Link", "</b>"), ("Vary", "X-A")),
    PAGE,
)
ELSEWHERE = Answer(201, HEADERS + (("Location", "http://app/one"),), PAGE)
INCLUDED = b'<!--# include virtual="/included" --><!--# echo var="request_method" --><!--# set var="v" value="1" -->'
INCLUDING = Answer(200, HEADERS, PAGE + INCLUDED)
UNPACKED = [("Accept-Encoding", "gzip")]


@dataclasses.dataclass
class Row:
    """text: what stands in the location, its first word is the directive; {n} is the row's number, {pair} is "once" or "bare".
    handler None: proxy_pass and its kin. beside: stands beside the location. where: or in a server of its own.
    stored False: nginx answers itself, and nothing is stored.
    lost: headers that a replay does not have, or that nginx makes anew. masked: headers whose values are drawn anew for each answer.
    apart: headers that no protected answer has; docs/reference/gateway.md says so. counts: its page is another each time.
    asks: how many requests come to the service with a replay."""

    text: str
    answer: Answer = dataclasses.field(default_factory=lambda: MADE)
    method: str = "POST"
    headers: tuple = ()
    body: bytes = BODY
    target: str = "x"
    handler: str = None
    beside: str = ""
    where: str = "location"
    stored: bool = True
    lost: tuple = ()
    masked: tuple = ()
    apart: tuple = ()
    asks: int = 0
    counts: bool = False
    close: bool = True

    @property
    def name(self):
        return self.text.split()[0].rstrip(";")


def in_server(text, **options):
    return Row(text, where="server", **options)


PROXY = [
    Row("proxy_bind off;"),
    Row("proxy_buffer_size 16k; proxy_busy_buffers_size 16k;"),
    Row("proxy_buffering off;"),
    Row("proxy_buffering off;", LARGE),
    Row("proxy_buffers 4 16k; proxy_busy_buffers_size 16k;", LARGE),
    Row("proxy_busy_buffers_size 8k;"),
    Row("proxy_cache c;", WHOLE),
    Row("proxy_cache_background_update on; proxy_cache c;"),
    Row("proxy_cache_bypass 1; proxy_cache c;"),
    Row("proxy_cache_convert_head off; proxy_cache c;"),
    Row("proxy_cache_key x; proxy_cache c; proxy_cache_valid any 1h;", WHOLE),
    Row("proxy_cache_lock on; proxy_cache c;"),
    Row("proxy_cache_lock_age 1s;"),
    Row("proxy_cache_lock_timeout 1s;"),
    Row("proxy_cache_max_range_offset 1;"),
    Row("proxy_cache_methods GET HEAD; proxy_cache c;"),
    Row("proxy_cache_min_uses 2; proxy_cache c;"),
    Row("proxy_cache_revalidate on;"),
    Row("proxy_cache_use_stale error timeout updating; proxy_cache c;"),
    Row("proxy_cache_valid any 1h; proxy_cache c; proxy_cache_key y;", WHOLE),
    Row("proxy_cache_valid any 1h; proxy_cache c;", WHOLE, method="PUT"),
    Row("proxy_connect_timeout 5s;"),
    Row("proxy_cookie_domain one.example two.example;", COOKIES, lost=("set-cookie",)),
    Row("proxy_cookie_flags a secure;", COOKIES, lost=("set-cookie",)),
    Row("proxy_cookie_path /one /two;", COOKIES, lost=("set-cookie",)),
    Row("proxy_force_ranges on;", WHOLE, apart=("accept-ranges",)),
    Row("proxy_force_ranges off;", WHOLE, headers=[("Range", "bytes=0-3")]),
    Row("proxy_headers_hash_bucket_size 128;"),
    Row("proxy_headers_hash_max_size 1024;"),
    Row("proxy_hide_header X-Hidden;"),
    Row("proxy_http_version 1.0;"),
    Row("proxy_http_version 1.1;", Answer(201, HEADERS, PAGE, framing="chunked")),
    Row("proxy_ignore_client_abort off;"),
    Row("proxy_ignore_headers X-Accel-Redirect;", Answer(201, HEADERS + (("X-Accel-Redirect", "/no"),), PAGE), lost=("x-accel-redirect",)),
    Row("proxy_intercept_errors off; error_page 404 /own;", Answer(404, HEADERS, PAGE)),
    Row("proxy_limit_rate 10m;"),
    Row("proxy_max_temp_file_size 0; proxy_buffers 2 4k; proxy_busy_buffers_size 4k;", LARGE),
    Row("proxy_method PUT;"),
    Row("proxy_next_upstream off;"),
    Row("proxy_next_upstream_timeout 1s;"),
    Row("proxy_next_upstream_tries 1;"),
    Row("proxy_no_cache 1; proxy_cache c;"),
    Row("proxy_pass_header Server;", Answer(201, HEADERS + (("Server", "mine"),), PAGE), lost=("server",)),
    Row("proxy_pass_request_body off;", body=b""),
    Row("proxy_pass_request_body off; proxy_set_header Content-Length '';"),
    Row("proxy_pass_request_headers off; once_handoff off; proxy_set_header X-Test $http_x_test;"),
    Row("proxy_read_timeout 10s;"),
    Row("proxy_redirect off;", ELSEWHERE),
    Row("proxy_redirect http://app/one /two;", ELSEWHERE),
    Row("proxy_redirect http://app/one http://two.example/;", ELSEWHERE),
    Row("proxy_redirect http://app/one /two;", Answer(200, HEADERS + (("Refresh", "5; url=http://app/one"),), PAGE)),
    Row("proxy_hide_header Location;", ELSEWHERE),
    Row("proxy_request_buffering off; proxy_http_version 1.1;"),
    Row("proxy_request_buffering off;"),
    Row("proxy_send_lowat 0;"),
    Row("proxy_send_timeout 10s;"),
    Row("proxy_set_body 'own $request_method';"),
    Row("proxy_set_header X-Set '$request_method $uri';"),
    Row("proxy_socket_keepalive on;"),
    Row("proxy_store @dir@/{pair}-{n};", WHOLE),
    Row("proxy_store_access user:rw; proxy_store @dir@/{pair}-{n};", LARGE),
    Row("proxy_temp_file_write_size 8k; proxy_buffers 2 4k; proxy_busy_buffers_size 4k;", LARGE),
    Row("proxy_temp_path @dir@/proxy;"),
    Row("proxy_pass http://app/else/;", handler=""),
    Row("proxy_pass http://app;", handler="", target="x?a=b%20c&d"),
    Row("proxy_pass http://$upstream_of_map;", handler=""),
    Row("fastcgi_pass unix:@fastcgi@; include @dir@/fastcgi.conf;", handler=""),
    Row("fastcgi_pass_request_headers off; once_handoff off; fastcgi_param HTTP_X_TEST $http_x_test; @fastcgi_pass@", handler=""),
    Row("uwsgi_pass_request_headers off; once_handoff off; uwsgi_param HTTP_X_TEST $http_x_test; @uwsgi_pass@", handler=""),
    Row("scgi_pass_request_headers off; once_handoff off; scgi_param HTTP_X_TEST $http_x_test; @scgi_pass@", handler=""),
    Row("fastcgi_index index.php; @fastcgi_pass@", handler=""),
    Row("fastcgi_param OWN x; @fastcgi_pass@", handler=""),
    Row("fastcgi_split_path_info ^(/\\w+)(/.*)$; fastcgi_param PATH_INFO $fastcgi_path_info; @fastcgi_pass@", handler=""),
    Row("fastcgi_catch_stderr nothing; @fastcgi_pass@", handler=""),
    Row("fastcgi_keep_conn on; @fastcgi_pass@", handler=""),
    Row("uwsgi_pass unix:@uwsgi@; include @dir@/uwsgi.conf;", handler=""),
    Row("uwsgi_param OWN x; @uwsgi_pass@", handler=""),
    Row("uwsgi_modifier1 0; @uwsgi_pass@", handler=""),
    Row("uwsgi_modifier2 0; @uwsgi_pass@", handler=""),
    Row("uwsgi_string ''; @uwsgi_pass@", handler=""),
    Row("scgi_pass unix:@scgi@; include @dir@/scgi.conf;", handler=""),
    Row("scgi_param OWN x; @scgi_pass@", handler=""),
]

ANSWERS = [
    Row("add_header X-Added '$request_method $status' always;"),
    Row("add_header X-Only-Some yes;", Answer(404, HEADERS, PAGE)),
    Row("add_header Cache-Control private;"),
    Row("add_header Cache-Control private;", CACHED),
    Row("add_header Last-Modified '';", WHOLE),
    Row("add_header ETag own;", WHOLE),
    Row("add_header Link '</a>; rel=preload';", CACHED),
    Row("add_header X-Status '$sent_http_content_type $sent_http_etag $upstream_status' always;", lost=("x-status",)),
    Row("add_trailer X-Trailer end;", Answer(200, HEADERS, PAGE, framing="chunked")),
    Row("expires max;", WHOLE),
    Row("expires max;", CACHED),
    Row("expires off;", CACHED),
    Row("expires epoch;"),
    Row("expires epoch;", CACHED),
    Row("expires modified 1h;", WHOLE),
    Row("etag off;", WHOLE),
    Row("if_modified_since before;", WHOLE, headers=[("If-Modified-Since", "Mon, 06 Nov 2034 10:00:00 GMT"), ("If-None-Match", '"e1"')]),
    Row("if_modified_since off;", WHOLE, headers=[("If-Modified-Since", "Mon, 06 Nov 2034 10:00:00 GMT")]),
    Row("max_ranges 1;", WHOLE, headers=[("Range", "bytes=0-3")]),
    Row("chunked_transfer_encoding off;", Answer(200, HEADERS, PAGE, framing="chunked")),
    Row("chunked_transfer_encoding on;", Answer(200, HEADERS, PAGE, framing="close")),
    Row("charset utf-8;"),
    Row("charset utf-8;", Answer(201, (("Content-Type", "text/html; charset=koi8-r"),), PAGE)),
    Row("charset utf-8;", Answer(201, HEADERS + (("X-Accel-Charset", "koi8-r"),), PAGE)),
    Row("charset utf-8; source_charset windows-1252;", Answer(201, HEADERS + (("X-Accel-Charset", "utf-8"),), PAGE)),
    Row("charset off;", Answer(201, HEADERS + (("X-Accel-Charset", "koi8-r"),), PAGE)),
    Row("charset_types text/plain; charset utf-8;", Answer(201, (("Content-Type", "text/plain"),), PAGE)),
    Row("override_charset on; charset koi8-r;", Answer(201, (("Content-Type", "text/html; charset=utf-8"),), PAGE)),
    Row("source_charset windows-1252; charset utf-8;", WHOLE),
    Row("gzip on; gzip_proxied any; gzip_http_version 1.0;", headers=UNPACKED),
    Row("gzip on; gzip_proxied any; gzip_http_version 1.0;", PACKED, headers=UNPACKED),
    Row("gzip_buffers 4 4k; gzip on; gzip_proxied any;", WHOLE, headers=UNPACKED),
    Row("gzip_comp_level 9; gzip on; gzip_proxied any;", WHOLE, headers=UNPACKED),
    Row("gzip_disable msie6; gzip on;", headers=UNPACKED + [("User-Agent", "Mozilla/4.0 (compatible; MSIE 6.0)")]),
    Row("gzip_hash 4k; gzip on; gzip_proxied any;", WHOLE, headers=UNPACKED),
    Row("gzip_http_version 1.1; gzip on;", WHOLE, headers=UNPACKED),
    Row("gzip_min_length 10000; gzip on;", WHOLE, headers=UNPACKED),
    Row("gzip_no_buffer off; gzip on;", WHOLE, headers=UNPACKED),  # with "on" nginx by itself can write the head of gzip twice
    Row("gzip_proxied expired no-cache no-store private auth; gzip on;", WHOLE, headers=UNPACKED + [("Via", "1.1 before")]),
    Row("gzip_static always;"),
    Row("gzip_types text/plain; gzip on;", Answer(200, (("Content-Type", "text/plain"),), PAGE), headers=UNPACKED),
    Row("gzip_vary on; gzip on;", WHOLE, headers=UNPACKED),
    Row("gzip_vary on; gzip on;", WHOLE),
    Row("gzip_window 4k; gzip on; gzip_proxied any;", WHOLE, headers=UNPACKED),
    Row("postpone_gzipping 100; gzip on;", WHOLE, headers=UNPACKED),
    Row("gzip on; gzip_proxied any;", Answer(206, HEADERS + (("Content-Range", "bytes 0-1/2"),), b"ab"), headers=UNPACKED),
    Row("gunzip on;", PACKED),
    Row("gunzip on;", PACKED, headers=UNPACKED),
    Row("gunzip_buffers 4 4k; gunzip on;", PACKED),
    Row("sub_filter two 2; sub_filter_once off;", WHOLE),
    Row("sub_filter_last_modified on; sub_filter two 2;", WHOLE),
    Row("sub_filter_once on; sub_filter two 2;", WHOLE),
    Row("sub_filter_types *; sub_filter two 2;", Answer(200, (("Content-Type", "text/plain"),), PAGE)),
    Row("add_before_body /included;", WHOLE),
    Row("add_after_body /included;", WHOLE),
    Row("addition_types text/plain; add_after_body /included;", Answer(200, (("Content-Type", "text/plain"),), PAGE)),
    Row("ssi on;", INCLUDING),
    Row("ssi on;", Answer(200, HEADERS, PAGE + b'<!--# include virtual="/fetched" -->'), asks=1),
    Row("ssi on; gzip on;", INCLUDING, headers=UNPACKED),
    Row("ssi_ignore_recycled_buffers on; ssi on;", INCLUDING),
    Row("ssi_last_modified on; ssi on;", INCLUDING),
    Row("ssi_min_file_chunk 1k; ssi on;", INCLUDING),
    Row("ssi_silent_errors on; ssi on;", Answer(200, HEADERS, b"<!--# nothing -->" + PAGE)),
    Row("ssi_types text/plain; ssi on;", Answer(200, (("Content-Type", "text/plain"),), INCLUDING.body)),
    Row("ssi_value_length 8; ssi on;", INCLUDING),
    Row("userid on;", masked=("set-cookie",)),
    Row("userid_domain one.example; userid on;", masked=("set-cookie",)),
    Row("userid_expires max; userid on;", masked=("set-cookie",)),
    Row("userid_flags secure; userid on;", masked=("set-cookie",)),
    Row("userid_mark A; userid on;", masked=("set-cookie",)),
    Row("userid_name who; userid on;", masked=("set-cookie",)),
    Row("userid_p3p policy; userid on;", masked=("set-cookie",)),
    Row("userid_path /; userid on;", masked=("set-cookie",)),
    Row("userid_service 7; userid on;", masked=("set-cookie",)),
    Row("limit_rate 10m;", LARGE),
    Row("limit_rate_after 1k; limit_rate 10m;", LARGE),
    Row("output_buffers 1 1k;", LARGE),
    Row("postpone_output 0;"),
    Row("sendfile on;", LARGE),
    Row("sendfile_max_chunk 1k; sendfile on;", LARGE),
    Row("send_lowat 0;"),
    Row("send_timeout 30s;"),
    Row("tcp_nodelay off;"),
    Row("tcp_nopush on;"),
    Row("aio threads;", LARGE),
    Row("aio_write on; aio threads; proxy_buffers 2 4k; proxy_busy_buffers_size 4k;", LARGE),
    Row("directio 1k; proxy_buffers 2 4k; proxy_busy_buffers_size 4k;", LARGE),
    Row("directio_alignment 4k;", LARGE),
    Row("read_ahead 1;"),
    Row("server_tokens off;"),
    Row("server_tokens off;", handler="return 403;", stored=False),
    Row("msie_padding on; error_page 405 /own;", Answer(400, HEADERS, PAGE), headers=OLD),
    Row("msie_refresh on;", Answer(303, HEADERS + (("Location", "http://else.example/"),), b""), headers=OLD),
    Row("subrequest_output_buffer_size 64k; ssi on;", INCLUDING),
    Row("absolute_redirect off;", handler="return 301 /there;", stored=False),
    Row("absolute_redirect off;", Answer(201, HEADERS + (("Location", "/there"),), PAGE)),
    Row("absolute_redirect on;", Answer(303, HEADERS + (("Location", "/there"),), PAGE)),
    Row("port_in_redirect off;", handler="return 301 /there;", stored=False),
    Row("server_name_in_redirect on;", handler="return 301 /there;", stored=False),
    Row("server_name_in_redirect on;", Answer(303, HEADERS + (("Location", "/there"),), PAGE)),
    Row("default_type text/x-own;", Answer(201, (), PAGE)),
    Row("types { text/x-own x; }", Answer(201, (), PAGE)),
    Row("reset_timedout_connection on;"),
    Row("lingering_close always;"),
    Row("lingering_time 1s;"),
    Row("lingering_timeout 1s;"),
    Row("keepalive_disable none;", close=False),
    Row("keepalive_requests 1;", close=False),
    Row("keepalive_time 1h;", close=False),
    Row("keepalive_timeout 60 30;", close=False),
    Row("keepalive_timeout 0;", close=False),
]

REQUESTS = [
    Row("client_body_buffer_size 16; client_max_body_size 1m;", body=b"x" * 9000),
    Row("client_body_in_file_only clean;"),
    Row("client_body_in_single_buffer on;", body=b"x" * 9000),
    Row("client_body_temp_path @dir@/client_body;"),
    Row("client_body_timeout 10s;"),
    Row("client_max_body_size 10;", body=b"x" * 11, stored=False),
    Row("client_max_body_size 0;", body=b"x" * 9000),
    in_server("client_header_buffer_size 16k;", headers=[("X-Long", "a" * 9000)]),
    in_server("client_header_timeout 10s;"),
    in_server("connection_pool_size 1k;"),
    in_server("request_pool_size 2k;"),
    in_server("ignore_invalid_headers off;", headers=[("X@Odd", "1")]),
    in_server("ignore_invalid_headers on;", headers=[("X@Odd", "1")]),
    in_server("underscores_in_headers on;", headers=[("X_Under", "1")]),
    in_server("underscores_in_headers off;", headers=[("X_Under", "1")]),
    in_server("large_client_header_buffers 4 64k;", headers=[("X-Long", "a" * 50000)]),
    in_server("max_headers 100;"),
    in_server("merge_slashes off;", target="x//y"),
    in_server("merge_slashes on;", target="x//y"),
    Row("real_ip_header X-Real; set_real_ip_from unix:; proxy_set_header X-Address $remote_addr;", headers=[("X-Real", "10.1.1.1")]),
    Row("real_ip_recursive on; real_ip_header X-Forwarded-For; set_real_ip_from unix:;", headers=[("X-Forwarded-For", "10.1.1.1, 10.1.1.2")]),
    Row("set_real_ip_from unix:;"),
    Row("rewrite ^(/\\w+/\\w+)/.*$ $1/written break;"),
    Row("rewrite ^(/\\w+/\\w+)/x$ $1/written last;"),
    Row("break; rewrite ^ /nowhere;"),
    Row("if ($request_method = POST) { set $y 1; }"),
    Row("if ($request_method = POST) { proxy_pass http://app; }"),
    Row("if ($request_method = POST) { return 402; }", stored=False),
    Row("set $own $request_method; add_header X-Own $own;"),
    Row("return 200 own;", handler="", stored=False),
    Row("try_files /nothing @{pair}{n};", handler="", beside="location @{pair}{n} {{ {protection} proxy_pass http://app; }}"),
    Row("try_files /nothing =404;", stored=False),
    Row("limit_except GET { allow all; }"),
    Row("limit_except GET { deny all; }", stored=False),
    Row("mirror /mirrored;"),
    Row("mirror_request_body off; mirror /mirrored;"),
    Row("internal;", stored=False),
    Row("error_page 403 /own; deny all;", stored=False),
    Row("error_page 403 =200 /own; deny all;", stored=False),
    Row("recursive_error_pages on; error_page 403 /own; deny all;", stored=False),
    Row("log_not_found off;"),
    Row("log_subrequest on; ssi on;", INCLUDING),
    Row("root @dir@;"),
    Row("alias @dir@/;", handler="", stored=False),
    Row("index x;", handler="root @dir@;", stored=False),
    Row("autoindex on;"),
    Row("autoindex_exact_size off;"),
    Row("autoindex_format json;"),
    Row("autoindex_localtime on;"),
    Row("random_index on;"),
    Row("disable_symlinks on;"),
    Row("open_file_cache max=10;"),
    Row("open_file_cache_errors on;"),
    Row("open_file_cache_events on;"),
    Row("open_file_cache_min_uses 2;"),
    Row("open_file_cache_valid 1s;"),
    Row("dav_methods PUT DELETE;"),
    Row("dav_access user:rw;"),
    Row("create_full_put_path on;"),
    Row("min_delete_depth 1;"),
    Row("empty_gif;", handler=""),
    Row("flv;", handler=""),
    Row("mp4;", handler=""),
    Row("mp4_buffer_size 64k; mp4;", handler=""),
    Row("mp4_max_buffer_size 64k; mp4;", handler=""),
    Row("mp4_start_key_frame on; mp4;", handler=""),
    Row("stub_status;", handler="", counts=True),
]

ACCESS = [
    Row("allow all;"),
    Row("deny all;", stored=False),
    Row("satisfy any; allow all; auth_basic x; auth_basic_user_file @dir@/users;"),
    Row("auth_basic x; auth_basic_user_file @dir@/users;", headers=[("Authorization", "Basic YW5uOmFubg==")]),
    Row("auth_basic x; auth_basic_user_file @dir@/users;", stored=False),
    Row("auth_basic_user_file @dir@/users; auth_basic x;", headers=[("Authorization", "Basic YW5uOm5vYm9keQ==")], stored=False),
    Row("auth_delay 1ms; auth_basic x; auth_basic_user_file @dir@/users;", headers=[("Authorization", "Basic YW5uOm5vYm9keQ==")], stored=False),
    Row("auth_request /allowed;"),
    Row("auth_request /denied;", stored=False),
    Row("auth_request_set $who $upstream_http_x_service; auth_request /asked; add_header X-Who $who;", asks=1),
    Row("limit_conn connections 10;"),
    Row("limit_conn_dry_run on; limit_conn connections 1;"),
    Row("limit_conn_log_level info; limit_conn connections 10;"),
    Row("limit_conn_status 429; limit_conn connections 10;"),
    Row("limit_req zone=requests burst=100 nodelay;"),
    Row("limit_req_dry_run on; limit_req zone=requests;"),
    Row("limit_req_log_level info; limit_req zone=requests burst=100 nodelay;"),
    Row("limit_req_status 429; limit_req zone=requests burst=100 nodelay;"),
    Row("valid_referers none one.example; if ($invalid_referer) { return 403; }"),
    Row("valid_referers none one.example; if ($invalid_referer) { return 403; }", headers=[("Referer", "http://else.example/")], stored=False),
    Row("secure_link $arg_md5; secure_link_md5 secret; if ($secure_link = '') { return 403; }", stored=False),
    Row("secure_link_md5 secret; secure_link $arg_md5;"),
    Row("secure_link_secret word;"),
    Row("ancient_browser MSIE; add_header X-Old $ancient_browser;", headers=[("User-Agent", "MSIE")]),
    Row("ancient_browser_value yes; ancient_browser MSIE; add_header X-Old $ancient_browser;", headers=[("User-Agent", "MSIE")]),
    Row("modern_browser unlisted; add_header X-New $modern_browser;"),
    Row("modern_browser_value yes; modern_browser unlisted; add_header X-New $modern_browser;"),
    Row("resolver 127.0.0.1;"),
    Row("resolver_timeout 1s;"),
]

ROWS = PROXY + ANSWERS + REQUESTS + ACCESS

# What nginx -t refuses where it is protected, and takes where it is not: (settings, a word of the reason).
REFUSED = [
    ("slice 1m; proxy_pass http://app;", "slice"),
    ("post_action /again; proxy_pass http://app;", "post_action"),
    ("proxy_intercept_errors on; proxy_pass http://app;", "proxy_intercept_errors"),
    ("proxy_pass_request_headers off; proxy_pass http://app;", "proxy_pass_request_headers"),
    ("proxy_next_upstream non_idempotent; proxy_pass http://app;", "proxy_next_upstream"),
    ("proxy_cache c; proxy_cache_methods POST; proxy_pass http://app;", "proxy_cache"),
    ("grpc_pass grpc://app;", "grpc_pass"),
    ("memcached_pass app;", "memcached_pass"),
    ("send_timeout 1s; proxy_pass http://app;", "send_timeout"),
]
# Of these nothing applies in a protected location, since their _pass is refused.
REFUSED_KIN = ("grpc_", "memcached_")

NEITHER = {
    "which location a request comes to": "location server server_name listen http2 http3 http3_hq include types_hash_bucket_size types_hash_max_size",
    "which server of an upstream gets it": "upstream hash ip_hash keepalive least_conn random zone sticky ntlm state",
    "variables, which other rows use": """
        map map_hash_bucket_size map_hash_max_size geo split_clients variables_hash_bucket_size variables_hash_max_size uninitialized_variable_warn
        rewrite_log referer_hash_bucket_size referer_hash_max_size server_names_hash_bucket_size server_names_hash_max_size charset_map""",
    "zones and directories, which other rows use": """
        limit_conn_zone limit_req_zone proxy_cache_path fastcgi_cache_path uwsgi_cache_path scgi_cache_path""",
    "logs": "access_log error_log log_format open_log_file_cache",
    "events {}, whose bit is that of http {}": """
        accept_mutex accept_mutex_delay debug_connection epoll_events multi_accept use worker_connections worker_aio_requests""",
    "the connection from the client, below HTTP": """
        ssl ssl_buffer_size ssl_certificate ssl_certificate_key ssl_certificate_cache ssl_ciphers ssl_client_certificate ssl_conf_command ssl_crl ssl_dhparam
        ssl_early_data ssl_ecdh_curve ssl_ocsp ssl_ocsp_cache ssl_ocsp_responder ssl_password_file ssl_prefer_server_ciphers ssl_protocols
        ssl_reject_handshake ssl_session_cache ssl_session_ticket_key ssl_session_tickets ssl_session_timeout ssl_stapling ssl_stapling_file
        ssl_stapling_responder ssl_stapling_verify ssl_trusted_certificate ssl_verify_client ssl_verify_depth
        http2_body_preread_size http2_chunk_size http2_idle_timeout http2_max_concurrent_pushes http2_max_concurrent_streams http2_max_field_size
        http2_max_header_size http2_max_requests http2_pool_size http2_push http2_push_preload http2_recv_buffer_size http2_recv_timeout
        http2_streams_index_size http3_max_concurrent_streams http3_stream_buffer_size quic_active_connection_id_limit quic_gso quic_host_key quic_retry""",
}
# The connection to the service, below HTTP.
NEITHER_KIN = ("proxy_ssl_", "uwsgi_ssl_")
