{{/* SPDX-License-Identifier: PostgreSQL */}}
{{/* Names and labels. No value takes part in a selector: a Deployment's selector can never change. */}}

{{/* At most 63 characters; a longer one ends in a hash of the whole, so that two long ones differ. */}}
{{- define "pgonce.short" -}}
{{- if gt (len .) 63 -}}
{{- printf "%s-%s" (trunc 54 . | trimSuffix "-") (sha256sum . | trunc 8) -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end }}

{{/* Not shorter for a release whose name holds the chart's: "shop" and "shop-pgonce" would have the same. */}}
{{- define "pgonce.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if eq .Chart.Name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name -}}
{{- end -}}
{{- end }}

{{/* (list . "gateway"): the name of an object */}}
{{- define "pgonce.object" -}}
{{- include "pgonce.short" (printf "%s-%s" (include "pgonce.fullname" (index . 0)) (index . 1)) -}}
{{- end }}

{{/* (list . "gateway"). The chart's name is its alias if it is a subchart, so that two of them in one release differ. */}}
{{- define "pgonce.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ include "pgonce.short" (index . 1) }}
{{- end }}

{{/* (list "commonLabels" LABELS): refuses those that the chart itself sets */}}
{{- define "pgonce.labels.check" -}}
{{- $where := index . 0 -}}
{{- range $name, $value := index . 1 -}}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|component|version|managed-by|part-of)|helm\\.sh/chart|pgonce/metrics)$" $name -}}
{{- fail (printf "\n\n%s: %s is the chart's own label, by which Services and Deployments find their pods. Use another name." $where $name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "pgonce.labels" -}}
{{- $root := index . 0 -}}
{{ include "pgonce.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: pgonce
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with $root.Values.commonLabels }}
{{- include "pgonce.labels.check" (list "commonLabels" .) }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* (list . .Values.image) */}}
{{- define "pgonce.image" -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default (index . 0).Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}

{{/* The address that a part listens on. */}}
{{- define "pgonce.any" -}}
{{- ternary "[::]" "0.0.0.0" .Values.ipv6 -}}
{{- end }}

{{/* Prometheus' job: rules and dashboard count on its beginning, and on one job for each database. */}}
{{- define "pgonce.job" -}}
{{- .Values.metrics.job | default (printf "pgonce-%s-%s" .Release.Namespace .Release.Name) -}}
{{- end }}
