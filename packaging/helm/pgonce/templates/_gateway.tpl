{{/* SPDX-License-Identifier: PostgreSQL */}}
{{/* The gateway, for its own pods and for a sidecar. */}}

{{/* Refuses what nginx, or a caller, would stumble over. */}}
{{- define "pgonce.gateway.check" -}}
{{- $gateway := .Values.gateway -}}
{{- if not $gateway.existingConfigMap -}}
{{- if not $gateway.upstream -}}
{{- fail "\n\ngateway.upstream: say where the service is, for example http://shop:3000 (a sidecar: http://127.0.0.1:3000)." -}}
{{- end -}}
{{- if not $gateway.tenant -}}
{{- fail "\n\ngateway.tenant: say who owns the keys: callers who share a key space can read each other's answers. http_x_tenant: a header that the proxy in front sets in each request; none: there is one caller." -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* How long it may need to end: to get out of use, to finish its requests, to store their outcomes. */}}
{{- define "pgonce.gateway.grace" -}}
{{- add (int .Values.gateway.drainSeconds) (int .Values.gateway.timeoutSeconds) 15 -}}
{{- end }}

{{- define "pgonce.gateway.conf" -}}
{{- $gateway := .Values.gateway -}}
{{- $database := include "pgonce.database" (list . "gateway" $gateway.database) | fromJson -}}
{{- $tls := hasPrefix "https://" $gateway.upstream -}}
{{- $address := $gateway.upstream | trimPrefix "https://" | trimPrefix "http://" | trimSuffix "/" -}}
{{- $host := regexReplaceAll ":[0-9]+$" $address "" -}}
{{- $server := ternary $address (printf "%s:%s" $address (ternary "443" "80" $tls)) (or (hasPrefix "unix:" $address) (ne $host $address)) -}}
load_module {{ $gateway.modulePath }};
# One worker makes fuller batches than several, and is enough for tens of thousands of requests a second.
worker_processes 1;
# A worker that ends lets its requests end first: longer than proxy_read_timeout.
worker_shutdown_timeout {{ add (int $gateway.timeoutSeconds) 10 }}s;
daemon off;
error_log stderr warn;
pid /run/pgonce/nginx.pid;
lock_file /run/pgonce/nginx.lock;
# nginx clears the environment of its workers; libpq needs this to find its service file, and reads that at each connect.
env PGSERVICEFILE;

events {
    worker_connections 4096;
}

http {
    once_database "service={{ $database.service }}";
    {{- if ne $gateway.replayCache "off" }}
    once_replay_cache zone=once_replays:{{ $gateway.replayCache }};
    {{- end }}
    log_format once escape=json '{"time":"$time_iso8601","client":"$remote_addr","method":"$request_method","uri":"$uri","status":"$status","verdict":"$once_verdict","fence":"$once_fence","cache":"$once_cache","upstream":"$upstream_status","seconds":"$request_time","request":"$request_id"}';
    access_log {{ ternary "/dev/stdout once" "off" $gateway.accessLog }};
    {{- range list "client_body" "proxy" "fastcgi" "uwsgi" "scgi" }}
    {{ . }}_temp_path /run/pgonce/{{ . }};
    {{- end }}
    server_tokens off;
    client_max_body_size {{ $gateway.bodyMax }};
    once_body_max {{ $gateway.bodyMax }};

    # A GET may switch to WebSocket.
    map $request_method $once_wanted_upgrade {
        default "";
        GET $http_upgrade;
    }
    map $once_wanted_upgrade $once_upgrade {
        default "";
        websocket websocket;
    }
    map $once_upgrade $once_connection {
        default upgrade;
        "" ""; # nothing: the connection to the service is kept
    }
    {{- with $gateway.httpSnippet }}
    {{- . | nindent 4 }}
    {{- end }}

    upstream once_upstream {
        server {{ $server }};
        keepalive 64;
        # Shorter than what servers keep (5 s and more): a request that meets a closing connection is in doubt.
        keepalive_timeout 4s;
    }

    server {
        listen 8080;
        {{- if .Values.ipv6 }}
        listen [::]:8080;
        {{- end }}
        {{- with $gateway.serverSnippet }}
        {{- . | nindent 8 }}
        {{- end }}

        location / {
            once {{ ternary "required" "on" $gateway.required }};
            once_scope "{{ $gateway.scope }}";
            once_tenant {{ ternary "none" (printf "$%s" (trimPrefix "$" $gateway.tenant)) (eq $gateway.tenant "none") }};
            once_on_5xx {{ $gateway.on5xx }};
            once_lease {{ $gateway.lease }};
            once_wait {{ $gateway.wait }};
            proxy_pass {{ ternary "https" "http" $tls }}://once_upstream;
            proxy_http_version 1.1;
            proxy_set_header Upgrade $once_upgrade;
            proxy_set_header Connection $once_connection;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_connect_timeout 5s;
            proxy_send_timeout 30s;
            proxy_read_timeout {{ int $gateway.timeoutSeconds }}s;
            {{- if $tls }}
            proxy_ssl_server_name on;
            proxy_ssl_name {{ $host }};
            proxy_ssl_verify on;
            proxy_ssl_verify_depth 5;
            proxy_ssl_trusted_certificate /etc/ssl/certs/ca-certificates.crt;
            {{- end }}
            {{- with $gateway.locationSnippet }}
            {{- . | nindent 12 }}
            {{- end }}
        }
        {{- include "pgonce.gateway.health" . | nindent 8 }}
    }

    # Not for clients: probes and metrics.
    server {
        listen 8081;
        {{- if .Values.ipv6 }}
        listen [::]:8081;
        {{- end }}
        access_log off;
        {{- include "pgonce.gateway.health" . | nindent 8 }}
        location = /metrics { once_status metrics; }
        location = /once/metrics { once_status metrics; }
        location = /once/status { once_status json; }
        location / { return 404; }
    }
}
{{- end }}

{{- define "pgonce.gateway.health" -}}
# The process serves; it says nothing about the database.
location = /once/live { access_log off; default_type text/plain; return 200 "live\n"; }
# 200 with the database, 503 without.
location = /once/ready { access_log off; once_status ready; }
{{- end }}

{{/* (dict "root" . "native" bool) */}}
{{- define "pgonce.gateway.container" -}}
{{- $root := .root -}}
{{- $gateway := $root.Values.gateway -}}
{{- $database := include "pgonce.database" (list $root "gateway" $gateway.database) | fromJson -}}
- name: {{ ternary "pgonce-gateway" "gateway" .sidecar }}
  image: {{ include "pgonce.image" (list $root $gateway.image) | quote }}
  imagePullPolicy: {{ $gateway.image.pullPolicy }}
  {{- if .native }}
  restartPolicy: Always
  {{- end }}
  command: [nginx]
  args: [-e, stderr, -c, /etc/pgonce/nginx/nginx.conf]
  env:
    {{- include "pgonce.database.env" $database | nindent 4 }}
    {{- with include "pgonce.pod.env" (list $root $gateway.pod) }}
    {{- . | nindent 4 }}
    {{- end }}
  ports:
    - {name: {{ ternary "pgonce" "http" .sidecar }}, containerPort: 8080, protocol: TCP}
    - {name: {{ ternary "pgonce-metrics" "metrics" .sidecar }}, containerPort: 8081, protocol: TCP}
  {{- include "pgonce.probes" (dict "live" "/once/live" "ready" (ternary "/once/live" "/once/ready" $gateway.readyWithoutDatabase) "port" (ternary "pgonce-metrics" "metrics" .sidecar)) | nindent 2 }}
  {{- if gt (int $gateway.drainSeconds) 0 }}
  lifecycle:
    preStop:
      # It takes requests until no Service sends it any. Then the image's stop signal, QUIT, lets nginx finish those that it has.
      sleep: {seconds: {{ int $gateway.drainSeconds }}}
  {{- end }}
  securityContext:
    {{- if .sidecar }}
    {{- toYaml (merge (deepCopy $root.Values.securityContext) (pick $root.Values.podSecurityContext "runAsUser" "runAsGroup" "seccompProfile")) | nindent 4 }}
    {{- else }}
    {{- toYaml $root.Values.securityContext | nindent 4 }}
    {{- end }}
  resources:
    {{- toYaml $gateway.resources | nindent 4 }}
  volumeMounts:
    {{- include "pgonce.gateway.mounts" . | nindent 4 }}
{{- end }}

{{- define "pgonce.gateway.mounts" -}}
{{- $gateway := .root.Values.gateway -}}
{{- $database := include "pgonce.database" (list .root "gateway" $gateway.database) | fromJson -}}
{{- $prefix := ternary "pgonce-" "" .sidecar -}}
- name: {{ $prefix }}nginx
  mountPath: /etc/pgonce/nginx
  readOnly: true
- name: {{ $prefix }}run
  mountPath: /run/pgonce
{{ include "pgonce.database.mounts" $database | replace "name: " (printf "name: %s" $prefix) }}
{{- with include "pgonce.pod.mounts" (list .root $gateway.pod) }}
{{ . }}
{{- end }}
{{- end }}

{{/* Pods of another chart may have no fsGroup: the files are readable for all users, and only this container has them. */}}
{{- define "pgonce.gateway.volumes" -}}
{{- $gateway := .root.Values.gateway -}}
{{- $database := include "pgonce.database" (list .root "gateway" $gateway.database) | fromJson -}}
{{- $prefix := ternary "pgonce-" "" .sidecar -}}
- name: {{ $prefix }}nginx
  configMap:
    name: {{ $gateway.existingConfigMap | default (include "pgonce.object" (list .root "gateway")) }}
- name: {{ $prefix }}run
  emptyDir: {sizeLimit: 1Gi}
{{ include "pgonce.database.volumes" (list $database (ternary "0444" "0440" .sidecar)) | replace "- name: " (printf "- name: %s" $prefix) }}
{{- end }}

{{- define "pgonce.gateway.checksum" -}}
{{- if not .Values.gateway.existingConfigMap -}}
checksum/pgonce-gateway: {{ include "pgonce.gateway.conf" . | sha256sum }}
{{- end -}}
{{- end }}

{{/* ---- For charts that have this one as a dependency: {{ include "pgonce.sidecar.container" .Subcharts.pgonce }}, and so on */}}

{{/* An element of initContainers, or of containers if gateway.sidecar.native is false. */}}
{{- define "pgonce.sidecar.container" -}}
{{- include "pgonce.gateway.check" . -}}
{{- include "pgonce.gateway.container" (dict "root" . "sidecar" true "native" .Values.gateway.sidecar.native) -}}
{{- end }}
{{/* Elements of volumes. */}}
{{- define "pgonce.sidecar.volumes" -}}
{{- include "pgonce.gateway.volumes" (dict "root" . "sidecar" true) -}}
{{- end }}
{{/* Annotations of the pod. */}}
{{- define "pgonce.sidecar.annotations" -}}
{{- include "pgonce.gateway.checksum" . -}}
{{- end }}
{{/* A number: terminationGracePeriodSeconds of the pod, at least. */}}
{{- define "pgonce.sidecar.grace" -}}
{{- include "pgonce.gateway.grace" . -}}
{{- end }}
