{{/* Values that may not change while something lives by them; nothing is found without a cluster (helm template). */}}
{{- define "hotdesk.refuseChanges" -}}
{{- $running := dict }}
{{- with lookup "apps/v1" "Deployment" .Release.Namespace (include "hotdesk.name" .) }}
{{- range (first .spec.template.spec.containers).env }}{{ $_ := set $running .name .value }}{{ end }}
{{- end }}
{{- $prefix := get $running "HOTDESK_NAMESPACE_PREFIX" }}
{{- if and $prefix (ne $prefix .Values.projectPrefix) (.Capabilities.APIVersions.Has "hotdesk.io/v1alpha1") }}
{{- $projects := list }}
{{- range (lookup "hotdesk.io/v1alpha1" "Project" .Release.Namespace "").items }}
{{- if not .spec.namespace }}{{ $projects = append $projects .metadata.name }}{{ end }}
{{- end }}
{{- if $projects }}
{{- fail (printf "projectPrefix cannot change from %s to %s while there are projects, such as %s: what runs there and the homes stay in %s%s, and would be lost sight of. Leave it as it was, or delete the projects first." $prefix .Values.projectPrefix (first $projects) $prefix (first $projects)) }}
{{- end }}
{{- end }}
{{- if $prefix }}
{{- $reservations := get $running "HOTDESK_RESERVATION_NAMESPACE" | default (printf "%s-reservations" .Release.Namespace) }}
{{- if ne $reservations (include "hotdesk.reservations" .) }}
{{- range (lookup "v1" "Pod" $reservations "").items }}
{{- if eq (get (.metadata.labels | default dict) "app.kubernetes.io/component") "gpu-reservation" }}
{{- fail (printf "reservations.namespace cannot change from %s to %s while GPUs are shared: who runs on one would lose it. Leave it as it was, or suspend what shares a GPU first; then kubectl get pods -n %s shows none." $reservations (include "hotdesk.reservations" $) $reservations) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
