{{/*
What starts the ranks: none (one rank alone), torchrun (one node), job (an indexed Job) or trainjob.
In: $.
*/}}
{{- define "gpu-mem-calculator.measureLauncher" -}}
{{- if eq .Values.measure.ranks "one" }}none
{{- else if and (eq (int .Values.nodes) 1) (eq .Values.measure.launcher "job") }}torchrun
{{- else }}{{ .Values.measure.launcher }}
{{- end }}
{{- end }}

{{/* The command line of `gpu-mem-calc` itself, as a list. In: $. */}}
{{- define "gpu-mem-calculator.measureWords" -}}
{{- $words := list "measure" "--config" (include "gpu-mem-calculator.runFile" .) }}
{{- $words = concat $words (list "--id" (include "gpu-mem-calculator.jobName" .)) }}
{{- with .Values.measure }}
{{- if int .rank }}{{ $words = concat $words (list "--rank" (toString (int .rank))) }}{{ end }}
{{- if .steps }}{{ $words = concat $words (list "--steps" (toString (int .steps))) }}{{ end }}
{{- if .cap }}{{ $words = concat $words (list "--cap" (toString .cap)) }}{{ end }}
{{- if .allocConf }}{{ $words = concat $words (list "--alloc-conf" .allocConf) }}{{ end }}
{{- if .findMinimum }}{{ $words = append $words "--find-minimum" }}{{ end }}
{{- range .settings }}{{ $words = concat $words (list "--set" .) }}{{ end }}
{{- if .resultsClaim }}{{ $words = concat $words (list "--append" "/results/runs.jsonl") }}{{ end }}
{{- $words = concat $words (list "--format" .format) }}
{{- end }}
{{- toYaml $words }}
{{- end }}

{{/* torchrun with our own ending, and what follows it, as a list. In: dict "root" $ "options" <list>. */}}
{{- define "gpu-mem-calculator.measureTorchrun" -}}
{{- $start := list "python" "-m" "gpu_mem_calculator.lab.measure.torchrun" }}
{{- $measure := include "gpu-mem-calculator.measureWords" .root | fromYamlArray }}
{{- toYaml (concat $start .options (list "-m" "gpu_mem_calculator") $measure) }}
{{- end }}

{{/* Where libraries keep what they compile or fetch: in the volume at /tmp. */}}
{{- define "gpu-mem-calculator.measureEnv" -}}
- name: PYTHONUNBUFFERED
  value: "1"
- name: HF_HOME
  value: /tmp/huggingface
- name: TORCHINDUCTOR_CACHE_DIR
  value: /tmp/inductor
- name: TORCH_EXTENSIONS_DIR
  value: /tmp/extensions
- name: TRITON_CACHE_DIR
  value: /tmp/triton
{{- end }}

{{/* Where a measuring pod may run: as every pod, and as measure says. In: $. */}}
{{- define "gpu-mem-calculator.measurePlacement" -}}
{{- with merge (dict) .Values.measure.nodeSelector .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat .Values.tolerations .Values.measure.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.measure.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Its volumes. In: $. */}}
{{- define "gpu-mem-calculator.measureVolumes" -}}
{{- $values := .Values -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ $values.measure.tmpSize | quote }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ $values.measure.shmSize | quote }}
{{ include "gpu-mem-calculator.runVolume" . }}
{{- if $values.measure.resultsClaim }}
- name: results
  persistentVolumeClaim:
    claimName: {{ $values.measure.resultsClaim | quote }}
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Where they are mounted. In: $. */}}
{{- define "gpu-mem-calculator.measureMounts" -}}
- name: shm
  mountPath: /dev/shm
{{- if .Values.measure.resultsClaim }}
- name: results
  mountPath: /results
{{- end }}
{{ include "gpu-mem-calculator.mounts" . }}
{{ include "gpu-mem-calculator.runMount" . }}
{{- end }}

{{/*
A pod that measures. In: dict "root" $ "gpus" <number> "command" <list>, and where wanted
"container" <its name> "variables" <list> "subdomain" <name> "ports" <list>.
*/}}
{{- define "gpu-mem-calculator.measurePod" -}}
{{- $values := .root.Values }}
{{- $labelled := dict "root" .root "component" "measure" }}
{{- $own := concat (include "gpu-mem-calculator.measureEnv" .root | fromYamlArray) (.variables | default list) }}
{{- $model := include "gpu-mem-calculator.runModel" (dict "root" .root "settings" $values.measure.settings) }}
metadata:
  labels:
    {{- include "gpu-mem-calculator.podLabels" $labelled | nindent 4 }}
  {{- with merge (include "gpu-mem-calculator.runChecksum" .root | fromYaml) $values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  restartPolicy: Never
  {{- with .subdomain }}
  subdomain: {{ . }}
  {{- end }}
  {{- include "gpu-mem-calculator.podDefaults" .root | nindent 2 }}
  {{- with include "gpu-mem-calculator.measurePlacement" .root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: {{ .container | default "measure" }}
      image: {{ $values.measure.image | quote }}
      imagePullPolicy: {{ $values.imagePullPolicy }}
      command:
        {{- range .command }}
        - {{ . | quote }}
        {{- end }}
      workingDir: /tmp
      {{- with .ports }}
      ports:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      env:
        {{- include "gpu-mem-calculator.env" (dict "root" .root "hub" true "model" $model "own" $own) | nindent 8 }}
      resources:
        {{- $gpus := .gpus }}
        {{- range list "requests" "limits" }}
        {{ . }}:
          cpu: {{ $values.measure.cpu | quote }}
          memory: {{ $values.measure.memory | quote }}
          {{ $values.measure.gpuResource }}: {{ $gpus }}
        {{- end }}
      securityContext:
        {{- include "gpu-mem-calculator.containerSecurity" .root | nindent 8 }}
      volumeMounts:
        {{- include "gpu-mem-calculator.measureMounts" .root | nindent 8 }}
  volumes:
    {{- include "gpu-mem-calculator.measureVolumes" .root | nindent 4 }}
{{- end }}
