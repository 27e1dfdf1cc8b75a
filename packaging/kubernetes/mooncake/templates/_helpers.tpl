{{- define "labels" -}}
app.kubernetes.io/name: mooncake
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* host:port of the members of etcd, separated by commas. */}}
{{- define "endpoints" -}}
{{- $name := .Release.Name -}}
{{- $found := .Values.etcd.endpoints -}}
{{- if .Values.etcd.enabled -}}
{{- $found = list -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{- $found = append $found (printf "%s-etcd-%d.%s-etcd:2379" $name $i $name) -}}
{{- end -}}
{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{/* What clients and store nodes are given in place of a master's address. */}}
{{- define "address" -}}
etcd://{{ include "endpoints" . }}/{{ .Values.clusterId }}
{{- end -}}

{{- define "pod" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
affinity: # not two of a kind on one machine, if that can be
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "labels" . | nindent 14 }}
{{- end -}}

{{- define "image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{/* Of a container, a pod, and a probe: TLS, if there is a Secret for it. */}}
{{- define "tlsEnv" -}}
- {name: MC_TLS_CERT, value: /tls/tls.crt}
- {name: MC_TLS_KEY, value: /tls/tls.key}
- {name: MC_TLS_CA_CERT, value: /tls/ca.crt}
- {name: MC_TLS_SERVER_NAME, value: {{ .Values.tls.serverName | quote }}}
{{- if .Values.tls.callers }}
- {name: MC_TLS_CLIENT_CA_CERT, value: /tls/ca.crt}
{{- end }}
{{- end -}}

{{- define "tlsVolume" -}}
- name: tls # one that is renewed is read without a restart: not by subPath
  secret: {secretName: {{ .Values.tls.secretName }}, defaultMode: 0440}
{{- end -}}

{{/* Of a container and a pod: keys, if there is a Secret for them. A master has all of them, a store its own and those of its REST API's callers. */}}
{{- define "authEnv" -}}
- {name: MC_AUTH_FILE, value: /auth/keys}
{{- end -}}

{{- define "authVolume" -}}
- name: auth # one that is changed is read without a restart: not by subPath
  secret: {secretName: {{ .root.Values.auth.secretName }}, defaultMode: 0440, items: [{key: {{ .file }}, path: keys}]}
{{- end -}}

{{/* A kubelet verifies nothing, and /health is told to who shows no certificate. */}}
{{- define "scheme" -}}
{{ ternary "HTTPS" "HTTP" (ne .Values.tls.secretName "") }}
{{- end -}}
