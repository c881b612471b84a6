{{- define "hotdesk.name" -}}
{{- if contains "hotdesk" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-hotdesk" .Release.Name }}{{ end -}}
{{- end }}

{{- define "hotdesk.serviceAccount" -}}
{{- default (include "hotdesk.name" .) .Values.serviceAccount.name -}}
{{- end }}

{{/* Of objects of the whole cluster: two releases do not share them. */}}
{{- define "hotdesk.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "hotdesk.name" .) -}}
{{- end }}

{{- define "hotdesk.selector" -}}
app.kubernetes.io/name: hotdesk
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: scheduler
{{- end }}

{{- define "hotdesk.labels" -}}
{{ include "hotdesk.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "hotdesk.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{/* Without a privilege, as anybody, on a file system it cannot write. */}}
{{- define "hotdesk.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* {team-a: "4"} as team-a=4,team-b=2 */}}
{{- define "hotdesk.seeds" -}}
{{- $pairs := list }}
{{- range $name, $quota := . }}{{ $pairs = append $pairs (printf "%s=%v" $name $quota) }}{{ end }}
{{- join "," $pairs }}
{{- end }}

{{/* One peer of a NetworkPolicy. */}}
{{- define "hotdesk.hubPods" -}}
podSelector: {matchLabels: {{ toJson .Values.hub.podLabels }}}
{{- with .Values.hub.namespace }}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ . | quote }}}}
{{- end }}
{{- end }}
