{{/* The ConfigMap that holds the run file. In: $. */}}
{{- define "gpu-mem-calculator.runConfigMap" -}}
{{- .Values.runConfigMap.name | default (printf "%s-run" .Release.Name) }}
{{- end }}

{{/* Which of its entries. In: $. */}}
{{- define "gpu-mem-calculator.runKey" -}}
{{- if .Values.run }}run.json{{ else }}{{ .Values.runConfigMap.key }}{{ end }}
{{- end }}

{{/* Where a pod finds the run file; its ending says the format. In: $. */}}
{{- define "gpu-mem-calculator.runFile" -}}
{{- $ending := ext (include "gpu-mem-calculator.runKey" .) -}}
/run/run{{ has $ending (list ".yaml" ".yml" ".toml") | ternary $ending ".json" }}
{{- end }}

{{/* The volume. In: $. */}}
{{- define "gpu-mem-calculator.runVolume" -}}
- name: run
  configMap:
    name: {{ include "gpu-mem-calculator.runConfigMap" . }}
{{- end }}

{{/*
The mount: the file alone, since container runtimes put things of their own into /run. In: $.
*/}}
{{- define "gpu-mem-calculator.runMount" -}}
- name: run
  mountPath: {{ include "gpu-mem-calculator.runFile" . }}
  subPath: {{ include "gpu-mem-calculator.runKey" . }}
  readOnly: true
{{- end }}

{{/* A run file's text, numbers as they are written: 500000000, not 5e+08. In: $. */}}
{{- define "gpu-mem-calculator.runText" -}}
{{- .Values.run | toPrettyJson }}
{{- end }}

{{/* An annotation that changes with the run file, so that a Job does. In: $. */}}
{{- define "gpu-mem-calculator.runChecksum" -}}
{{- if .Values.run -}}
checksum/run: {{ include "gpu-mem-calculator.runText" . | sha256sum }}
{{- end }}
{{- end }}

{{/*
The model of a run, as far as the chart can see: the last model.name in the settings, else the
inline run's. In: dict "root" $ "settings" <list of section.key=value>.
*/}}
{{- define "gpu-mem-calculator.runModel" -}}
{{- $name := dig "model" "name" "" (.root.Values.run | default dict) }}
{{- range .settings }}
{{- if hasPrefix "model.name=" . }}{{ $name = trimPrefix "model.name=" . | trimAll "\"" }}{{ end }}
{{- end }}
{{- $name }}
{{- end }}
