{{- define "shop.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
{{- end }}
