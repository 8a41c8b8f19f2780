//! What holds for a translation of any objects.

mod plugins;

use proptest::prelude::*;
use serde_json::json;
use weir_kube::objects::{Object, ObjectRef};
use weir_kube::{KubeOptions, ResourceList, Translation, World, translate};

const SHOP: &str = include_str!("fixtures/shop.yaml");
const LISTENERS: &str = include_str!("fixtures/listeners.yaml");
const POLICIES: &str = include_str!("fixtures/weirpolicies.yaml");
const APISIX: &str = include_str!("fixtures/apisix.yaml");
const APISIX_GATEWAY: &str = include_str!("fixtures/apisix-gateway.yaml");

/// Faulty objects, which nothing refers to.
const FAULTY: &str = include_str!("fixtures/faulty.yaml");

fn objects(manifests: &str) -> Vec<Object> {
    World::from_manifests(manifests).unwrap().world.objects()
}

fn world<'a>(objects: impl IntoIterator<Item = &'a Object>) -> World {
    let mut world = World::default();
    objects.into_iter().for_each(|object| world.put(object.clone()));
    world
}

fn meaning(world: &World) -> Translation {
    translate(world, &KubeOptions { adopt_apisix: true, ..plugins::options() })
}

fn all() -> Vec<Object> {
    objects(&[SHOP, LISTENERS, FAULTY, POLICIES, APISIX, APISIX_GATEWAY].join("\n---\n"))
}

/// They are written by users of a namespace, and the node would send the requests.
#[test]
fn urls_of_annotations_do_not_lead_to_the_node() {
    let manifests = |annotation: &str, url: &str| {
        format!(
            "{{ apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {{ name: nginx }}, \
               spec: {{ controller: k8s.io/ingress-nginx }} }}\n---\n\
             {{ apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {{ name: a, namespace: shop, \
               annotations: {{ nginx.ingress.kubernetes.io/{annotation}: \"{url}\" }} }}, \
               spec: {{ ingressClassName: nginx, rules: [{{ host: localhost, http: {{ paths: [{{ path: /, pathType: Prefix, \
               backend: {{ service: {{ name: none, port: {{ number: 80 }} }} }} }}] }} }}] }} }}\n"
        )
    };
    for (annotation, url, is_refused) in [
        ("auth-url", "http://127.0.0.1:7085/status", true),
        ("auth-url", "http://$host:9180/", true),
        ("auth-url", "http://auth.example/", false),
        ("mirror-target", "http://169.254.169.254$request_uri", true),
        ("mirror-target", "http://shadow.example$request_uri", false),
    ] {
        let world = World::from_manifests(&manifests(annotation, url)).unwrap().world;
        let options = KubeOptions { adopt_ingress_nginx: true, ..KubeOptions::default() };
        let translation = translate(&world, &options);
        let told = translation.events.iter().any(|event| event.message.contains("leads to the node itself"));
        assert_eq!(told, is_refused, "{annotation} {url}: {:?}", translation.events);
        let text = translation.resources.iter().map(|one| one.value.to_string()).collect::<String>();
        let is_sent = text.contains("forward-auth") || text.contains("proxy-mirror");
        assert!(!is_refused || !is_sent, "{annotation} {url}: {text}");
    }
}

/// What a change of the manifests makes of the routes of the policies' objects.
fn policies(edits: &[(&str, &str)]) -> Translation {
    let text = edits.iter().fold(POLICIES.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    meaning(&World::from_manifests(&text).unwrap().world)
}

fn accepted(translation: &Translation, policy: &str, target: usize) -> (String, String) {
    let status = translation.statuses.iter().find(|status| status.object.to_string() == format!("WeirPolicy {policy}"));
    let condition = &status.expect("it has a status").status["ancestors"][target]["conditions"][0];
    let text = |key: &str| condition[key].as_str().expect("a text").to_owned();
    (text("reason"), text("message"))
}

fn route<'a>(translation: &'a Translation, begins: &str) -> &'a serde_json::Value {
    &translation.resources.iter().find(|resource| resource.id.starts_with(begins)).expect("it is there").value
}

/// A Gateway for requests and streams, with a policy.
const STREAM_PLUGINS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: { name: weir }
spec: { controllerName: weir.dev/gateway-controller }
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: public, namespace: shop }
spec:
  gatewayClassName: weir
  listeners: [{ name: web, port: 8080, protocol: HTTP }, { name: mqtt, port: 1883, protocol: TCP }]
---
apiVersion: v1
kind: Service
metadata: { name: web, namespace: shop }
spec: { clusterIP: 10.96.0.7, ports: [{ port: 80 }] }
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: { name: web, namespace: shop }
spec: { parentRefs: [{ name: public, sectionName: web }], rules: [{ backendRefs: [{ name: web, port: 80 }] }] }
---
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: TCPRoute
metadata: { name: mqtt, namespace: shop }
spec: { parentRefs: [{ name: public, sectionName: mqtt }], rules: [{ backendRefs: [{ name: web, port: 80 }] }] }
---
apiVersion: weir.dev/v1alpha1
kind: WeirPolicy
metadata: { name: all, namespace: shop }
spec:
  targetRefs: [{ group: gateway.networking.k8s.io, kind: Gateway, name: public }]
  plugins: { mqtt-proxy: { protocol_level: 4 }, cors: {} }
";

#[test]
fn plugins_of_a_gateway_that_work_on_streams_alone_are_left_out_for_requests() {
    for (with, service) in [(STREAM_PLUGINS.to_owned(), true), (STREAM_PLUGINS.replace(", cors: {}", ""), false)] {
        let translation = meaning(&World::from_manifests(&with).unwrap().world);
        assert_eq!(accepted(&translation, "shop/all", 0).0, "Accepted");
        let http = route(&translation, "httproute_shop_web_0_0");
        assert!(http["upstream_id"].is_string() && http["plugins"].is_null(), "{http}");
        assert_eq!(http["service_id"].is_string(), service, "{http}");
        let services: Vec<_> = translation.resources.iter().filter(|one| one.kind == ResourceList::Services).collect();
        let of_requests = services.iter().find(|one| http["service_id"] == *one.id);
        assert_eq!(of_requests.map(|one| &one.value), service.then_some(&json!({ "plugins": { "cors": {} } })));
        let stream = route(&translation, "tcproute_shop_mqtt");
        let of_streams = services.iter().find(|one| stream["service_id"] == *one.id).expect("it is there");
        assert_eq!(of_streams.value, json!({ "plugins": { "mqtt-proxy": { "protocol_level": 4 } } }));
    }
}

#[test]
fn a_policy_for_requests_cannot_have_a_plugin_that_works_on_streams_alone() {
    let text = STREAM_PLUGINS.replace("kind: Gateway, name: public", "kind: HTTPRoute, name: web");
    let translation = meaning(&World::from_manifests(&text).unwrap().world);
    let (reason, message) = accepted(&translation, "shop/all", 0);
    assert_eq!(reason, "Invalid");
    assert!(message.contains("plugin mqtt-proxy: works on streams alone"), "{message}");
    let http = route(&translation, "httproute_shop_web_0_0");
    assert_eq!(http["plugins"]["fault-injection"]["abort"]["http_status"], 500, "{http}");
}

#[test]
fn policies_read_secrets_of_their_namespace_that_are_meant_for_plugins_alone() {
    for (edits, told) in [
        (vec![("type: weir.dev/plugin", "type: Opaque")], "there is no Secret `csrf` of the type `weir.dev/plugin`"),
        (
            vec![("metadata: { name: csrf, namespace: shop }", "metadata: { name: csrf, namespace: infra }")],
            "there is no Secret `csrf`",
        ),
        (vec![("kubernetes/csrf/key", "kubernetes/csrf/other")], "has no `other`"),
        (vec![("key: hunter2", "key: $env://WEIR_ADMIN_KEY")], "is itself a reference"),
        (vec![("$secret://kubernetes/csrf/key", "$ENV://WEIR_ADMIN_KEY")], "refer to Secrets alone"),
        (vec![("$secret://kubernetes/csrf/key", "$secret://vault/1/path/key")], "refer to Secrets alone"),
        (vec![("$secret://kubernetes/csrf/key", "$secret://kubernetes/infra/csrf/key")], "refer to Secrets alone"),
    ] {
        let translation = policies(&edits);
        let (reason, message) = accepted(&translation, "shop/bills", 0);
        assert_eq!(reason, "Invalid");
        assert!(message.contains(told), "{edits:?}: {message}");
        let rule = route(&translation, "httproute_shop_bills_0_0");
        assert_eq!(rule["plugins"]["fault-injection"]["abort"]["http_status"], 500, "{edits:?}");
        assert!(!translation.document().to_string().contains("hunter2"), "{edits:?}");
    }
}

#[test]
fn expressions_of_the_policies_of_a_namespace_are_bounded_together() {
    let large = ("limit-count: { count: 5, time_window: 60 }", "limit-count: { expressions: 16777216 }");
    let later = ("limit-count: { count: 1, time_window: 60 }", "limit-count: { expressions: 1 }");
    let translation = policies(&[large, later]);
    assert_eq!(accepted(&translation, "shop/bills", 0).0, "Accepted");
    let (reason, message) = accepted(&translation, "shop/export", 0);
    assert!(reason == "Invalid" && message.contains("16 MiB together"), "{reason}: {message}");
}

#[test]
fn a_canary_with_a_policy_of_its_own_gets_no_requests() {
    let canary = "
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: { name: nginx }
spec: { controller: k8s.io/ingress-nginx }
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: { name: canary, namespace: shop, annotations: { nginx.ingress.kubernetes.io/canary: \"true\", nginx.ingress.kubernetes.io/canary-weight: \"10\" } }
spec:
  ingressClassName: nginx
  rules:
  - host: bills.example
    http: { paths: [{ path: /, pathType: Prefix, backend: { service: { name: bills, port: { name: web } } } }] }
";
    let policy = POLICIES.replace("kind: Ingress, name: closed", "kind: Ingress, name: canary");
    let options = KubeOptions { adopt_ingress_nginx: true, ..plugins::options() };
    let translated = |policy: &str| {
        let text =
            [policy.replace("ingressClassName: weir", "ingressClassName: nginx"), canary.to_owned()].join("\n---\n");
        translate(&World::from_manifests(&text).unwrap().world, &options)
    };
    let splits = |translation: &Translation| {
        let plugins = &route(translation, "ingress_shop_bills_0")["plugins"];
        !plugins["traffic-split"].is_null()
    };
    assert!(splits(&translated(POLICIES)));
    let translation = translated(&policy);
    assert!(!splits(&translation));
    assert!(accepted(&translation, "shop/faulty", 1).1.contains("canary"));
}

fn config() -> ProptestConfig {
    let cases = if std::env::var_os("WEIR_TEST_FULL").is_some() { 2_000 } else { 100 };
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_order_of_objects_does_not_matter(shuffled in Just(all()).prop_shuffle()) {
        let (one, other) = (meaning(&world(&all())), meaning(&world(&shuffled)));
        prop_assert_eq!(one.resources, other.resources);
        prop_assert_eq!(one.statuses, other.statuses);
    }

    #[test]
    fn a_removed_object_is_as_one_that_never_was(kept in prop::sample::subsequence(all(), 0..all().len())) {
        let mut reduced = world(&all());
        for object in all() {
            if !kept.iter().any(|one| one.reference() == object.reference()) {
                reduced.remove(&object.reference());
            }
        }
        let (one, other) = (meaning(&reduced), meaning(&world(&kept)));
        prop_assert_eq!(one.resources, other.resources);
        prop_assert_eq!(one.statuses, other.statuses);
    }

    #[test]
    fn a_faulty_object_changes_nothing_about_others(
        good in prop::sample::subsequence(objects(&[SHOP, LISTENERS, APISIX].join("\n---\n")), 0..40),
        faulty in prop::sample::select(objects(FAULTY)),
    ) {
        let before = meaning(&world(&good));
        let after = meaning(&world(good.iter().chain([&faulty])));
        let is_other = |object: &ObjectRef| *object != faulty.reference();
        let resources: Vec<_> = after.resources.into_iter().filter(|one| is_other(&one.origin)).collect();
        let statuses: Vec<_> = after.statuses.into_iter().filter(|one| is_other(&one.object)).collect();
        prop_assert_eq!(before.resources, resources);
        prop_assert_eq!(before.statuses, statuses);
    }

    /// Another namespace's Service has an address of its own, which must be nowhere unless its namespace grants it.
    #[test]
    fn without_a_grant_no_address_of_another_namespace_is_there(
        kind in prop::sample::select(vec!["HTTPRoute", "GRPCRoute", "TCPRoute"]),
        namespace in prop::sample::select(vec!["shop", "other"]),
        name in prop::sample::select(vec![None, Some("hidden"), Some("else")]),
        is_there in any::<bool>(),
    ) {
        let mut world = World::from_manifests(&[SHOP, HIDDEN].join("\n---\n")).unwrap().world;
        if is_there {
            let spec = json!({
                "from": [{ "group": "gateway.networking.k8s.io", "kind": kind, "namespace": namespace }],
                "to": [{ "group": "", "kind": "Service", "name": name }],
            });
            let grant = json!({ "metadata": { "name": "g", "namespace": "vault" }, "spec": spec });
            world.put(weir_kube::objects::Kind::ReferenceGrant.read(grant).unwrap());
        }
        let is_granted = is_there && kind == "HTTPRoute" && namespace == "other" && name != Some("else");
        let document = meaning(&world).document().to_string();
        prop_assert_eq!(document.contains("10.9.9.9"), is_granted);
    }
}

const HIDDEN: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: { name: curious, namespace: other }
spec:
  parentRefs: [{ name: public, namespace: infra }]
  rules: [{ backendRefs: [{ name: hidden, namespace: vault, port: 80 }] }]
---
apiVersion: v1
kind: Service
metadata: { name: hidden, namespace: vault }
spec: { ports: [{ port: 80 }] }
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: hidden-1, namespace: vault, labels: { kubernetes.io/service-name: hidden } }
addressType: IPv4
ports: [{ port: 80 }]
endpoints: [{ addresses: [10.9.9.9] }]
";
