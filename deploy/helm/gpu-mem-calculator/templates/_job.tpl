{{/*
The Job of modes deepspeed and estimate: one pod that prints and ends.
In: dict "root" $ "component" "estimate" "args" <list> "model" <its name or address> "run" <whether
a run file is mounted>.
*/}}
{{- define "gpu-mem-calculator.job" -}}
{{- $values := .root.Values -}}
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "gpu-mem-calculator.jobMetadata" . | nindent 2 }}
spec:
  backoffLimit: 0
  activeDeadlineSeconds: {{ int64 $values.activeDeadlineSeconds }}
  ttlSecondsAfterFinished: {{ int64 $values.ttlSecondsAfterFinished }}
  template:
    metadata:
      labels:
        {{- include "gpu-mem-calculator.podLabels" . | nindent 8 }}
      {{- $own := .run | ternary (include "gpu-mem-calculator.runChecksum" .root) "" | fromYaml }}
      {{- with merge $own $values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      restartPolicy: Never
      {{- include "gpu-mem-calculator.podDefaults" .root | nindent 6 }}
      {{- with include "gpu-mem-calculator.placement" .root }}
      {{- . | nindent 6 }}
      {{- end }}
      containers:
        - name: ram-estimation
          image: {{ $values.image | quote }}
          imagePullPolicy: {{ $values.imagePullPolicy }}
          args:
            {{- range .args }}
            - {{ . | quote }}
            {{- end }}
          workingDir: /tmp
          env:
            {{- include "gpu-mem-calculator.env" . | nindent 12 }}
          resources:
            {{- range list "requests" "limits" }}
            {{ . }}:
              cpu: {{ $values.cpuForPod | quote }}
              memory: {{ $values.memoryForPod | quote }}
            {{- end }}
          securityContext:
            {{- include "gpu-mem-calculator.containerSecurity" .root | nindent 12 }}
          volumeMounts:
            {{- include "gpu-mem-calculator.mounts" .root | nindent 12 }}
            {{- if .run }}
            {{- include "gpu-mem-calculator.runMount" .root | nindent 12 }}
            {{- end }}
      volumes:
        {{- include "gpu-mem-calculator.volumes" .root | nindent 8 }}
        {{- if .run }}
        {{- include "gpu-mem-calculator.runVolume" .root | nindent 8 }}
        {{- end }}
{{- end }}
