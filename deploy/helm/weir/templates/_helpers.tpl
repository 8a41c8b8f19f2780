{{- define "weir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "weir.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "weir.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "weir.selector" -}}
app.kubernetes.io/name: {{ include "weir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "weir.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The account of the pods that follow the cluster. */}}
{{- define "weir.followerAccount" -}}
{{- include "weir.serviceAccount" . -}}{{- if .Values.controller.enabled -}}-controller{{- end -}}
{{- end -}}

{{- define "weir.controllerName" -}}
{{- printf "%s-controller" (include "weir.fullname" . | trunc 52 | trimSuffix "-") -}}
{{- end -}}

{{/* Not those of the nodes, whose Service must not lead to controllers. */}}
{{- define "weir.controllerSelector" -}}
app.kubernetes.io/name: {{ printf "%s-controller" (include "weir.name" . | trunc 52 | trimSuffix "-") }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.controllerLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "weir.controllerSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "weir.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The cluster, as nodes or controllers follow it, in JSON. */}}
{{- define "weir.kubernetes" -}}
{{- $kubernetes := dict
  "in_cluster" true
  "gateway_controller" .Values.controller.gatewayController
  "ingress_controller" .Values.controller.ingressController
  "leader_election" (dict "namespace" .Release.Namespace "name" (include "weir.fullname" .)) -}}
{{- if .Values.controller.adoptIngressNginx -}}{{- $_ := set $kubernetes "adopt_ingress_nginx" true -}}{{- end -}}
{{- if .Values.controller.adoptApisix -}}{{- $_ := set $kubernetes "adopt_apisix" true -}}{{- end -}}
{{- with .Values.controller.namespaces -}}{{- $_ := set $kubernetes "namespaces" . -}}{{- end -}}
{{- if .Values.controller.gatewayServices -}}{{- $_ := set $kubernetes "gateway_services" true -}}{{- end -}}
{{- with .Values.controller.publishAddresses -}}{{- $_ := set $kubernetes "publish_addresses" . -}}{{- end -}}
{{- with .Values.config.store -}}{{- $_ := mergeOverwrite $kubernetes (deepCopy (default dict .kubernetes)) -}}{{- end -}}
{{- toJson $kubernetes -}}
{{- end -}}

{{/* The files of a Secret that is mounted at /etc/weir-tls, in JSON. */}}
{{- define "weir.mutualTls" -}}
{{- dict "cert" "/etc/weir-tls/tls.crt" "key" "/etc/weir-tls/tls.key" "ca" "/etc/weir-tls/ca.crt" | toJson -}}
{{- end -}}

{{/* controller.yaml. */}}
{{- define "weir.controllerConfig" -}}
{{- $controller := dict
  "kubernetes" (include "weir.kubernetes" . | fromJson)
  "listen" (printf ":%v" .Values.controller.port)
  "tls" (include "weir.mutualTls" . | fromJson)
  "node_names" .Values.controller.nodeNames -}}
{{- $config := dict "status" "0.0.0.0:7085" "controller" $controller -}}
{{- with .Values.config.plugins -}}{{- $_ := set $config "plugins" . -}}{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* weir.yaml: what the chart decides, and over it what the user says. */}}
{{- define "weir.config" -}}
{{- $listen := list -}}
{{- $open := list -}}
{{- range $name, $port := .Values.ports -}}
{{- if $port.ingress -}}
{{- $listen = append $listen (dict "address" (printf ":%v" $port.port) "tls" $port.tls) -}}
{{- else -}}
{{- $open = append $open (printf ":%v" $port.port) -}}
{{- end -}}
{{- end -}}
{{- $store := dict "kubernetes" (include "weir.kubernetes" . | fromJson) -}}
{{- if .Values.controller.enabled -}}
{{- $host := printf "https://%s.%s.svc:%v" (include "weir.controllerName" .) .Release.Namespace .Values.controller.port -}}
{{- $store = dict "controller" (dict "hosts" (list $host) "tls" (include "weir.mutualTls" . | fromJson)) -}}
{{- end -}}
{{- $config := dict
  "status" "0.0.0.0:7085"
  "data_dir" "/var/lib/weir"
  "shutdown_delay" (printf "%vs" .Values.drain.delaySeconds)
  "worker_shutdown_timeout" (printf "%vs" .Values.drain.timeoutSeconds)
  "store" $store -}}
{{- with $listen -}}{{- $_ := set $config "listen" . -}}{{- end -}}
{{- with $open -}}{{- $_ := set $config "resource_listeners" . -}}{{- end -}}
{{- $own := deepCopy .Values.config -}}
{{- if and .Values.controller.enabled $own.store -}}{{- $_ := unset $own.store "kubernetes" -}}{{- end -}}
{{- toYaml (mergeOverwrite $config $own) -}}
{{- end -}}

{{/* Rights to objects in namespaces. */}}
{{- define "weir.namespacedRules" -}}
- apiGroups: [""]
  resources: [services, secrets, configmaps]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [get, list, watch]
- apiGroups: [networking.k8s.io]
  resources: [ingresses/status]
  verbs: [patch]
- apiGroups: [gateway.networking.k8s.io]
  resources:
  - gateways
  - listenersets
  - httproutes
  - grpcroutes
  - tcproutes
  - tlsroutes
  - udproutes
  - backendtlspolicies
  - referencegrants
  verbs: [get, list, watch]
- apiGroups: [gateway.networking.k8s.io]
  resources:
  - gateways/status
  - listenersets/status
  - httproutes/status
  - grpcroutes/status
  - tcproutes/status
  - tlsroutes/status
  - udproutes/status
  - backendtlspolicies/status
  verbs: [patch]
- apiGroups: [weir.dev]
  resources: [weirpolicies]
  verbs: [get, list, watch]
- apiGroups: [weir.dev]
  resources: [weirpolicies/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- if .Values.controller.adoptApisix }}
- apiGroups: [apisix.apache.org]
  resources:
  - apisixroutes
  - apisixupstreams
  - apisixtlses
  - apisixconsumers
  - apisixpluginconfigs
  - apisixglobalrules
  - gatewayproxies
  - pluginconfigs
  - backendtrafficpolicies
  - httproutepolicies
  - l4routepolicies
  - consumers
  verbs: [get, list, watch]
- apiGroups: [apisix.apache.org]
  resources:
  - apisixroutes/status
  - apisixupstreams/status
  - apisixtlses/status
  - apisixconsumers/status
  - apisixpluginconfigs/status
  - apisixglobalrules/status
  - backendtrafficpolicies/status
  - httproutepolicies/status
  - l4routepolicies/status
  - consumers/status
  verbs: [patch]
{{- end }}
{{- if .Values.controller.gatewayServices }}
- apiGroups: [""]
  resources: [services]
  verbs: [create, patch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [create, patch]
{{- end }}
{{- end -}}
