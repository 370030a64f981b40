{{- define "otelctx-agent.selector" -}}
app.kubernetes.io/name: otelctx-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "otelctx-agent.labels" -}}
{{ include "otelctx-agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
