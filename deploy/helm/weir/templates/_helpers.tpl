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

{{/* Not empty if the controllers issue certificates: there are controllers, and no certificates are given. */}}
{{- define "weir.issues" -}}
{{- $tls := .Values.controller.tls -}}
{{- if and .Values.controller.enabled (ne (empty $tls.controllerSecret) (empty $tls.nodeSecret)) -}}
{{- fail "controller.tls needs both controllerSecret and nodeSecret, or neither: then the controllers issue certificates" -}}
{{- end -}}
{{- if and .Values.controller.enabled (empty $tls.controllerSecret) -}}
{{- if ne (toJson .Values.controller.nodeNames) (toJson (list "weir-node")) -}}
{{- fail "controller.nodeNames has no effect while the controllers issue certificates: remove it, or give certificates by controller.tls" -}}
{{- end -}}
true
{{- end -}}
{{- end -}}

{{/* The Secret with the authority of the controllers, and the ConfigMap with the public half of it. */}}
{{- define "weir.authorityName" -}}
{{- printf "%s-ca" (include "weir.controllerName" .) -}}
{{- end -}}

{{/* The name of the controllers as servers, and the audience of the tokens of nodes. */}}
{{- define "weir.controllerHost" -}}
{{- printf "%s.%s.svc" (include "weir.controllerName" .) .Release.Namespace -}}
{{- end -}}

{{/* controller.yaml. */}}
{{- define "weir.controllerConfig" -}}
{{- $controller := dict
  "kubernetes" (include "weir.kubernetes" . | fromJson)
  "listen" (printf ":%v" .Values.controller.port) -}}
{{- if include "weir.issues" . -}}
{{- $authority := include "weir.authorityName" . -}}
{{- $account := printf "%s/%s" .Release.Namespace (include "weir.serviceAccount" .) -}}
{{- $host := include "weir.controllerHost" . -}}
{{- $_ := set $controller "issue" (dict
  "secret" $authority "config_map" $authority "names" (list $host) "accounts" (list $account) "audience" $host) -}}
{{- else -}}
{{- $_ := set $controller "tls" (include "weir.mutualTls" . | fromJson) -}}
{{- $_ := set $controller "node_names" .Values.controller.nodeNames -}}
{{- end -}}
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
{{- $host := printf "https://%s:%v" (include "weir.controllerHost" .) .Values.controller.port -}}
{{- $pulled := dict "hosts" (list $host) -}}
{{- if include "weir.issues" . -}}
{{- $_ := set $pulled "enrolment" (dict "token" "/etc/weir-tls/token" "ca" "/etc/weir-tls/ca.crt") -}}
{{- else -}}
{{- $_ := set $pulled "tls" (include "weir.mutualTls" . | fromJson) -}}
{{- end -}}
{{- $store = dict "controller" $pulled -}}
{{- end -}}
{{- $_ := set $store "zone" "${{WEIR_ZONE:=}}" -}}
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
{{/* A zone may be a number, and is text. */}}
{{- toYaml (mergeOverwrite $config $own) | replace "zone: ${{WEIR_ZONE:=}}" "zone: \"${{WEIR_ZONE:=}}\"" -}}
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
