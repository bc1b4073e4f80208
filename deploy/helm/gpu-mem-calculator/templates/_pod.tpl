{{/* What every pod has, beside its containers and volumes. In: $. */}}
{{- define "gpu-mem-calculator.podDefaults" -}}
automountServiceAccountToken: {{ .Values.automountServiceAccountToken }}
enableServiceLinks: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . | quote }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- range $key := list "runAsUser" "runAsGroup" "fsGroup" }}
  {{- $number := get $.Values.podSecurity $key }}
  {{- if has (kindOf $number) (list "float64" "int64" "int") }}
  {{ $key }}: {{ int64 $number }}
  {{- if eq $key "fsGroup" }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  {{- end }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where a pod of ours may run. In: $. Mode measure has keys of its own. */}}
{{- define "gpu-mem-calculator.placement" -}}
{{- $placed := dict }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with get $.Values $key }}{{ $_ := set $placed $key . }}{{ end }}
{{- end }}
{{- with $placed }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* What every container may do: nothing but write to its volumes. */}}
{{- define "gpu-mem-calculator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/*
The variables of a container: where models come from, then the user's, which win.
In: dict "root" $ "model" <the model's name or address> "hub" <whether the hub may be asked>
"own" <list of more variables>.
*/}}
{{- define "gpu-mem-calculator.env" -}}
{{- $given := list }}
{{- range .root.Values.extraEnv }}{{ $given = append $given .name }}{{ end }}
{{- $all := concat (include "gpu-mem-calculator.modelEnv" . | fromYamlArray) (.own | default list) }}
{{- $kept := list }}
{{- range $all }}
{{- if not (has .name $given) }}{{ $kept = append $kept . }}{{ end }}
{{- end }}
{{- concat $kept .root.Values.extraEnv | toYaml }}
{{- end }}

{{/* A home that can be written to, the hub's token and address, a bucket's keys. */}}
{{- define "gpu-mem-calculator.modelEnv" -}}
{{- $values := .root.Values -}}
- name: HOME
  value: /tmp
{{- if .hub }}
{{- with $values.hfTokenSecret.name }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . | quote }}
      key: {{ $values.hfTokenSecret.key | quote }}
{{- end }}
{{- with $values.hfEndpoint }}
- name: HF_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- if hasPrefix "s3://" (.model | toString) }}
{{- with $values.bucketStorageHost }}
- name: AWS_ENDPOINT_URL_S3
  value: {{ . | quote }}
{{- end }}
{{- with $values.bucketRegion }}
- name: AWS_REGION
  value: {{ . | quote }}
{{- end }}
{{- if $values.bucketCredentialsSecret.name }}
{{- range $name, $key := dict "AWS_ACCESS_KEY_ID" "accessKeyKey" "AWS_SECRET_ACCESS_KEY" "secretKeyKey" }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $values.bucketCredentialsSecret.name | quote }}
      key: {{ get $values.bucketCredentialsSecret $key | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The volume at /tmp, and the user's. In: $. */}}
{{- define "gpu-mem-calculator.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 256Mi
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Where they are mounted. In: $. */}}
{{- define "gpu-mem-calculator.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
