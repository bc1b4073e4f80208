{{/* Labels that select an object's pods. In: dict "root" $ "component" "web". */}}
{{- define "gpu-mem-calculator.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of every object. In: dict "root" $ "component" "web". */}}
{{- define "gpu-mem-calculator.labels" -}}
{{ include "gpu-mem-calculator.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/*
Name, labels and annotations of a Job or of what stands for one: the user's and ours; ours win.
In: dict "root" $ "component" "measure".
*/}}
{{- define "gpu-mem-calculator.jobMetadata" -}}
name: {{ include "gpu-mem-calculator.jobName" .root }}
labels:
  {{- toYaml (merge (include "gpu-mem-calculator.labels" . | fromYaml) .root.Values.jobLabels) | nindent 2 }}
{{- with .root.Values.jobAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Labels of a pod: the user's and ours; ours win. In: dict "root" $ "component" "web". */}}
{{- define "gpu-mem-calculator.podLabels" -}}
{{- toYaml (merge (include "gpu-mem-calculator.labels" . | fromYaml) .root.Values.podLabels) }}
{{- end }}

{{/*
A Job's name. Its pods cannot be changed, so an upgrade makes a new Job and Helm removes the old:
release, release-r2, release-r3. In: $.
*/}}
{{- define "gpu-mem-calculator.jobName" -}}
{{- .Release.Name }}{{ if gt (int .Release.Revision) 1 }}-r{{ .Release.Revision }}{{ end }}
{{- end }}

{{/* A Service's name, which Kubernetes wants stricter than a release's. In: $. */}}
{{- define "gpu-mem-calculator.serviceName" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .Release.Name) }}
{{- fail (printf "the release name %q cannot name a Service: begin it with a letter and leave dots out" .Release.Name) }}
{{- end }}
{{- .Release.Name }}
{{- end }}

{{/*
A Job as it is, or wrapped in a KaiwoJob where kaiwo.enabled.
In: dict "root" $ "job" <the text of a whole Job, from apiVersion on> "component" "estimate".
*/}}
{{- define "gpu-mem-calculator.submit" -}}
{{- if .root.Values.kaiwo.enabled -}}
apiVersion: kaiwo.silogen.ai/v1alpha1
kind: KaiwoJob
metadata:
  {{- include "gpu-mem-calculator.jobMetadata" . | nindent 2 }}
spec:
  job:
    {{- .job | nindent 4 }}
{{- else }}
{{- .job }}
{{- end }}
{{- end }}
