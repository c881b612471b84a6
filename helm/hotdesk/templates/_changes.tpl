{{/* A value that may not change while something lives by it; nothing is found without a cluster (helm template). */}}
{{- define "hotdesk.refuseChanges" -}}
{{- $prefix := "" }}
{{- with lookup "apps/v1" "Deployment" .Release.Namespace (include "hotdesk.name" .) }}
{{- range (first .spec.template.spec.containers).env }}{{ if eq .name "HOTDESK_NAMESPACE_PREFIX" }}{{ $prefix = .value }}{{ end }}{{ end }}
{{- end }}
{{- if and $prefix (ne $prefix .Values.projectPrefix) (.Capabilities.APIVersions.Has "hotdesk.io/v1alpha1") }}
{{- $projects := list }}
{{- range (lookup "hotdesk.io/v1alpha1" "Project" .Release.Namespace "").items }}
{{- if not .spec.namespace }}{{ $projects = append $projects .metadata.name }}{{ end }}
{{- end }}
{{- if $projects }}
{{- fail (printf "projectPrefix cannot change from %s to %s while there are projects, such as %s: what runs there and the homes stay in %s%s, and would be lost sight of. Leave it as it was, or delete the projects first." $prefix .Values.projectPrefix (first $projects) $prefix (first $projects)) }}
{{- end }}
{{- end }}
{{- end }}
