{{/* SPDX-License-Identifier: PostgreSQL */}}
{{/* What all pods share: the database's files, security, scheduling. */}}

{{/* (list . "relays.orders" .database): which Secret, key and section a part uses, as JSON. */}}
{{- define "pgonce.database" -}}
{{- $root := index . 0 -}}
{{- $own := index . 2 | default dict -}}
{{- $database := mergeOverwrite (deepCopy $root.Values.database) (deepCopy $own) -}}
{{- if not $database.existingSecret -}}
{{- fail (printf "\n\n%s.database.existingSecret (or database.existingSecret): name the Secret with the service file that leads to PostgreSQL. README.md, \"The database\", shows one." (index . 1)) -}}
{{- end -}}
{{- toJson $database -}}
{{- end }}

{{/* Of a database: the environment names files and a section, and holds no secret. */}}
{{- define "pgonce.database.env" -}}
- name: PGSERVICEFILE
  value: /etc/pgonce/database/pg_service.conf
- name: PGSERVICE
  value: {{ .service | quote }}
{{- end }}

{{- define "pgonce.database.mounts" -}}
- name: database
  mountPath: /etc/pgonce/database
  readOnly: true
{{- if .tlsSecret }}
- name: database-tls
  mountPath: /etc/pgonce/tls
  readOnly: true
{{- end }}
{{- end }}

{{/* (list database mode): readable for the group that fsGroup sets; libpq accepts that for a service file and a key, but for no password file. */}}
{{- define "pgonce.database.volumes" -}}
{{- $database := index . 0 -}}
- name: database
  secret:
    secretName: {{ $database.existingSecret }}
    defaultMode: {{ index . 1 }}
    items:
      - key: {{ $database.key | quote }}
        path: pg_service.conf
{{- if $database.tlsSecret }}
- name: database-tls
  secret:
    secretName: {{ $database.tlsSecret }}
    defaultMode: {{ index . 1 }}
{{- end }}
{{- end }}

{{/* (dict "root" . "component" NAME "own" .pod "grace" SECONDS "containers" YAML "volumes" YAML): a pod's template without its annotations' checksums ("annotations" YAML) */}}
{{- define "pgonce.pod" -}}
{{- $root := .root -}}
{{- $pod := mergeOverwrite (deepCopy $root.Values.pod) (deepCopy (.own | default dict)) -}}
metadata:
  labels:
    {{- include "pgonce.labels" (list $root .component) | nindent 4 }}
    {{- with .labels }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $pod.labels }}
    {{- include "pgonce.labels.check" (list (printf "pod.labels of %s" $.component) .) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if or .annotations $pod.annotations }}
  annotations:
    {{- with .annotations }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $pod.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  {{- with .restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  serviceAccountName: {{ $pod.serviceAccountName }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .grace }}
  securityContext:
    {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $pod.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if not .restartPolicy }}
  {{- if kindIs "invalid" $pod.topologySpreadConstraints }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "pgonce.selector" (list $root .component) | nindent 10 }}
  {{- else if $pod.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml $pod.topologySpreadConstraints | nindent 4 }}
  {{- end }}
  {{- end }}
  containers:
    {{- .containers | nindent 4 }}
  volumes:
    {{- .volumes | nindent 4 }}
    {{- with $pod.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* (list root own): environment and mounts that a user adds */}}
{{- define "pgonce.pod.env" -}}
{{- with (mergeOverwrite (deepCopy (index . 0).Values.pod) (deepCopy (index . 1 | default dict))).env -}}
{{ toYaml . }}
{{- end -}}
{{- end }}
{{- define "pgonce.pod.mounts" -}}
{{- with (mergeOverwrite (deepCopy (index . 0).Values.pod) (deepCopy (index . 1 | default dict))).volumeMounts -}}
{{ toYaml . }}
{{- end -}}
{{- end }}

{{/* (dict "live" PATH "ready" PATH "port" NAME). Liveness never asks for the database: a restart would not bring it back. */}}
{{- define "pgonce.probes" -}}
startupProbe:
  httpGet: {path: {{ .live }}, port: {{ .port }}}
  periodSeconds: 1
  failureThreshold: 60
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: {{ .live }}, port: {{ .port }}}
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: {{ .ready }}, port: {{ .port }}}
  periodSeconds: 5
  failureThreshold: 2
  timeoutSeconds: 5
{{- end }}

{{/* (dict "root" . "component" NAME "replicas" N): as many as may be away: never a reason why a node cannot be drained */}}
{{- define "pgonce.budget" -}}
{{- if and .root.Values.podDisruptionBudget.enabled (gt (int .replicas) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "pgonce.object" (list .root .component) }}
  labels:
    {{- include "pgonce.labels" (list .root .component) | nindent 4 }}
spec:
  maxUnavailable: 1
  # Pods that are not ready, because the database is away, hold up no drain.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "pgonce.selector" (list .root .component) | nindent 6 }}
{{- end }}
{{- end }}
