{{/* What is made of it are names a Service may have: short enough, without dots, and a letter comes first. */}}
{{- define "hotdesk.name" -}}
{{- $name := .Release.Name | replace "." "-" }}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "hotdesk-%s" $name }}{{ end -}}
{{- if not (contains "hotdesk" $name) }}{{ $name = printf "%s-hotdesk" (trunc 45 $name | trimSuffix "-") }}{{ end -}}
{{- trunc 53 $name | trimSuffix "-" -}}
{{- end }}

{{- define "hotdesk.serviceAccount" -}}
{{- default (include "hotdesk.name" .) .Values.serviceAccount.name -}}
{{- end }}

{{/* Of objects of the whole cluster: two releases do not share them. */}}
{{- define "hotdesk.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "hotdesk.name" .) -}}
{{- end }}

{{/* (list $ "hub") */}}
{{- define "hotdesk.selectorOf" -}}
app.kubernetes.io/name: hotdesk
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "hotdesk.labelsOf" -}}
{{- $root := index . 0 }}
{{- include "hotdesk.selectorOf" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "hotdesk.selector" -}}
{{ include "hotdesk.selectorOf" (list . "scheduler") }}
{{- end }}

{{- define "hotdesk.labels" -}}
{{ include "hotdesk.labelsOf" (list . "scheduler") }}
{{- end }}

{{- define "hotdesk.image" -}}
{{ include "hotdesk.imageOf" (list . .Values.image) }}
{{- end }}

{{/* (list $ .Values.hub.image) */}}
{{- define "hotdesk.imageOf" -}}
{{- $image := index . 1 -}}
{{ $image.repository }}:{{ default (index . 0).Chart.AppVersion $image.tag }}
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

{{- define "hotdesk.reservations" -}}
{{- default (printf "%s-reservations" .Release.Namespace) .Values.reservations.namespace -}}
{{- end }}

{{/* Where the chart's own pods go, and what fetches their images. */}}
{{- define "hotdesk.placement" -}}
{{- with .Values.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* One peer of a NetworkPolicy: the chart's hub, or the one elsewhere. */}}
{{- define "hotdesk.hubPods" -}}
{{- if .Values.hub.enabled }}
podSelector: {matchLabels: {{ include "hotdesk.selectorOf" (list . "hub") | fromYaml | toJson }}}
{{- else }}
podSelector: {matchLabels: {{ toJson .Values.hub.podLabels }}}
{{- with .Values.hub.namespace }}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ . | quote }}}}
{{- end }}
{{- end }}
{{- end }}

{{/* Peers of a NetworkPolicy: all that is in projects' own namespaces; workspaces and jobs in a namespace that was there before. */}}
{{- define "hotdesk.projects" -}}
- namespaceSelector: {matchExpressions: [{key: hotdesk.io/project, operator: Exists}]}
- namespaceSelector: {}
  podSelector: {matchExpressions: [{key: hotdesk.io/project, operator: Exists}]}
{{- end }}

{{/* Whether the scheduler itself is shown outside of the cluster: then its callers come from anywhere. */}}
{{- define "hotdesk.isShown" -}}
{{- if or (ne .Values.service.type "ClusterIP") (and (not .Values.hub.enabled) (or .Values.ingress.enabled .Values.httpRoute.enabled)) }}yes{{ end -}}
{{- end }}

{{/* Addresses as pods of the cluster reach them. */}}
{{- define "hotdesk.schedulerUrl" -}}
http://{{ include "hotdesk.name" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port }}
{{- end }}

{{- define "hotdesk.hubUrl" -}}
http://{{ include "hotdesk.name" . }}-hub.{{ .Release.Namespace }}.svc:8081
{{- end }}

{{- define "hotdesk.hubApiUrl" -}}
{{- if .Values.hub.enabled }}{{ include "hotdesk.hubUrl" . }}{{ .Values.hub.baseUrl }}hub/api{{ else }}{{ .Values.hub.apiUrl }}{{ end -}}
{{- end }}

{{/* The Secret of passwords and tokens that hub, proxy and scheduler share. */}}
{{- define "hotdesk.hubSecret" -}}
{{- default (printf "%s-hub" (include "hotdesk.name" .)) .Values.hub.existingSecret -}}
{{- end }}

{{/* What people meet: the proxy, or without a hub the scheduler's API. */}}
{{- define "hotdesk.front" -}}
{{ include "hotdesk.name" . }}{{ if .Values.hub.enabled }}-proxy{{ end }}
{{- end }}

{{- define "hotdesk.namePorts" -}}
- {port: 53, protocol: UDP}
- {port: 53, protocol: TCP}
{{- end }}

{{- define "hotdesk.apiServerPorts" -}}
{{- range .Values.networkPolicy.apiServerPorts }}
- {port: {{ . }}, protocol: TCP}
{{- end }}
{{- end }}
