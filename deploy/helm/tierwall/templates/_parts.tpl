{{- define "tierwall.image" -}}
{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Labels of every object; `component` is controller, node-agent or authorizer. */}}
{{- define "tierwall.labels" -}}
{{ include "tierwall.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tierwall.selector" -}}
app.kubernetes.io/name: tierwall
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* Profile `restricted` of Pod Security. */}}
{{- define "tierwall.podSecurityContext" -}}
runAsNonRoot: true
{{- with .Values.podSecurity.runAsUser }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
{{- end }}
seccompProfile: {{ toJson .Values.podSecurity.seccompProfile }}
{{- end }}

{{- define "tierwall.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "tierwall.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- {name: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- /* Replicas on different nodes and in different zones, as far as there are any.

The scheduler ignores all spread constraints of a pod on nodes that lack the label of one of them. So zones, which many
clusters do not have, are an affinity. */}}
{{- define "tierwall.spread" -}}
topologySpreadConstraints:
- topologyKey: kubernetes.io/hostname
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "tierwall.selector" $ | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: topology.kubernetes.io/zone
        labelSelector:
          matchLabels:
            {{- include "tierwall.selector" $ | nindent 12 }}
{{- end }}

{{- /* A binding of a role to the ServiceAccount of a component. */}}
{{- define "tierwall.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "tierwall.labels" . | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ .kind }}, name: {{ .name }}}
subjects:
- {kind: ServiceAccount, name: tierwall-{{ .component }}, namespace: {{ .root.Release.Namespace | quote }}}
{{- end }}

{{- define "tierwall.hasBridge" -}}
{{- if has "--bridge" .Values.authorizer.extraArgs }}yes{{ end }}
{{- end }}
