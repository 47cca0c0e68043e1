{{/* SPDX-License-Identifier: PostgreSQL */}}
{{/* Relays and consumers, which differ in one word. */}}

{{/* (list . "relays" "orders"): an entry with the defaults of its kind, as JSON */}}
{{- define "pgonce.job.settings" -}}
{{- $root := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $name := index . 2 -}}
{{- $defaults := ternary $root.Values.relayDefaults $root.Values.consumerDefaults (eq $kind "relays") -}}
{{- $job := mergeOverwrite (deepCopy $defaults) (deepCopy (index (index $root.Values $kind) $name | default dict)) -}}
{{- $given := list -}}
{{- range list "options" "existingConfigMap" "existingSecret" -}}
{{- if index $job . }}{{ $given = append $given . }}{{ end -}}
{{- end -}}
{{- if and $job.enabled (ne (len $given) 1) -}}
{{- fail (printf "\n\n%s.%s: give one of options, existingConfigMap and existingSecret%s." $kind $name (ternary (printf ", and not %s" (join " and " $given)) "" (gt (len $given) 1))) -}}
{{- end -}}
{{- toJson $job -}}
{{- end }}

{{/* (list "relays.orders" NAME VALUE): "NAME = VALUE", one line */}}
{{- define "pgonce.option" -}}
{{- $where := printf "%s.options.%s" (index . 0) (index . 1) -}}
{{- $name := index . 1 -}}
{{- $value := index . 2 -}}
{{- if kindIs "bool" $value }}{{ $value = ternary "yes" "no" $value }}{{ end -}}
{{- if kindIs "float64" $value }}{{ $value = ternary (int64 $value | toString) (toString $value) (eq (floor $value) $value) }}{{ end -}}
{{- $value = toString $value -}}
{{- if or (has $name (list "password" "secret")) (regexMatch "(?i)^kafka\\..*password" $name) -}}
{{- fail (printf "\n\n%s: a secret belongs in a Secret: list it under secrets, and set %s_file: /etc/pgonce/secrets/KEY. For kafka.* options use existingSecret." $where $name) -}}
{{- end -}}
{{- if or (regexMatch "://[^/@]*:[^/@]*@" $value) (and (eq $name "header") (regexMatch "(?i)^(proxy-)?(authorization|cookie|[^:]*(key|token|secret))[^:]*:" $value)) (and (eq $name "dsn") (contains "password" $value)) -}}
{{- fail (printf "\n\n%s: its value holds a secret: put that into a file of a Secret (password_file, header_file), which secrets lists; for the database, into the service file." $where) -}}
{{- end -}}
{{- if regexMatch "[\\r\\n]" $value -}}
{{- fail (printf "\n\n%s: a value is one line. For an option that may come more than once, give a list." $where) -}}
{{- end -}}
{{ $name }} = "{{ $value }}"
{{- end }}

{{/* (list "relays" "orders" settings): its pgonce.conf */}}
{{- define "pgonce.job.conf" -}}
{{- $kind := index . 0 -}}
{{- $name := index . 1 -}}
{{- $job := index . 2 -}}
[{{ ternary "relay" "consume" (eq $kind "relays") }} {{ $job.section | default $name }}]
{{- range $option, $value := $job.options }}
{{- if kindIs "slice" $value }}
{{- range $value }}
{{ include "pgonce.option" (list (printf "%s.%s" $kind $name) $option .) }}
{{- end }}
{{- else if not (kindIs "invalid" $value) }}
{{ include "pgonce.option" (list (printf "%s.%s" $kind $name) $option $value) }}
{{- end }}
{{- end }}
{{- end }}

{{/* (list settings): rules of a NetworkPolicy to the broker, as YAML */}}
{{- define "pgonce.job.egress" -}}
{{- $where := index . 0 -}}
{{- $job := index . 1 -}}
{{- if $job.egress -}}
{{ toYaml $job.egress }}
{{- else if $job.options -}}
{{- $ports := list -}}
{{- $targets := list ($job.options.url | default "" | toString) ($job.options.endpoint | default "" | toString) -}}
{{- $usual := dict "kafka" "9092" "nats" "4222" "rabbitmq" (ternary "5671" "5672" (hasPrefix "amqps:" ($job.options.url | default "" | toString))) "sqs" "443" "sns" "443" "webhook" "443" "stdout" "" -}}
{{- range $targets -}}
{{- range regexFindAll ":[0-9]+(,|/|$)" . -1 }}{{ $ports = append $ports (regexFind "[0-9]+" .) }}{{ end -}}
{{- if and (hasPrefix "http" .) (not (regexMatch "^https?://[^/]*:[0-9]+(/|$)" .)) }}{{ $ports = append $ports (ternary "443" "80" (hasPrefix "https:" .)) }}{{ end -}}
{{- end -}}
{{- $named := regexFindAll ":[0-9]+(,|/|$)" ($job.options.url | default "" | toString) -1 -}}
{{- if not $named }}{{ with index $usual ($job.options.sink | default $job.options.source | default "stdout") }}{{ $ports = append $ports . }}{{ end }}{{ end -}}
{{- with $ports | uniq | sortAlpha -}}
- ports:
    {{- range . }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- end -}}
{{- else -}}
{{- fail (printf "\n\n%s.egress: networkPolicy is enabled, and the chart cannot read this configuration: say where its broker is, for example [{ports: [{port: 4222, protocol: TCP}]}]." $where) -}}
{{- end -}}
{{- end }}

{{- define "pgonce.job.container" -}}
- name: {{ .word }}
  image: {{ include "pgonce.image" (list .root .root.Values.image) | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [pgonce]
  args:
    - {{ .word }}
    - {{ .job.section | default .name | quote }}
    - --config
    - /etc/pgonce/conf/pgonce.conf
    - --metrics
    - {{ printf "%s:%s" (include "pgonce.any" .root) (ternary "9188" "9189" (eq .word "relay")) | quote }}
  env:
    {{- include "pgonce.database.env" .database | nindent 4 }}
    {{- with include "pgonce.pod.env" (list .root .job.pod) }}
    {{- . | nindent 4 }}
    {{- end }}
  ports:
    - {name: metrics, containerPort: {{ ternary 9188 9189 (eq .word "relay") }}, protocol: TCP}
  {{- include "pgonce.probes" (dict "live" "/health" "ready" "/once/ready" "port" "metrics") | nindent 2 }}
  securityContext:
    {{- toYaml .root.Values.securityContext | nindent 4 }}
  resources:
    {{- toYaml .job.resources | nindent 4 }}
  volumeMounts:
    {{- include "pgonce.job.mounts" . | nindent 4 }}
{{- end }}

{{- define "pgonce.job.mounts" -}}
- name: conf
  mountPath: /etc/pgonce/conf
  readOnly: true
{{- if .job.secrets }}
- name: secrets
  mountPath: /etc/pgonce/secrets
  readOnly: true
{{- end }}
{{ include "pgonce.database.mounts" .database }}
{{- with include "pgonce.pod.mounts" (list .root .job.pod) }}
{{ . }}
{{- end }}
{{- end }}

{{- define "pgonce.job.volumes" -}}
- name: conf
  {{- if .job.existingSecret }}
  secret:
    secretName: {{ .job.existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .job.key | quote }}, path: pgonce.conf}
  {{- else }}
  configMap:
    name: {{ .job.existingConfigMap | default (include "pgonce.object" (list .root .component)) }}
    items:
      - {key: {{ ternary .job.key "pgonce.conf" (ne .job.existingConfigMap "") | quote }}, path: pgonce.conf}
  {{- end }}
{{- if .job.secrets }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range .job.secrets }}
      - secret:
          name: {{ . }}
      {{- end }}
{{- end }}
{{ include "pgonce.database.volumes" (list .database "0440") }}
{{- end }}
