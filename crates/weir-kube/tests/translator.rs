//! A translation that goes on is the same as one from scratch, after any changes.

mod plugins;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use serde_json::{Value, json};
use weir_kube::objects::{Kind, Object, ObjectRef};
use weir_kube::{
    DerivedResource, GatewayAddresses, KubeOptions, ObjectStatus, ResourceList, TranslationReader, Translator, World,
    WorldChanges, translate,
};

const MANIFESTS: [&str; 9] = [
    include_str!("fixtures/shop.yaml"),
    include_str!("fixtures/listeners.yaml"),
    include_str!("fixtures/policies.yaml"),
    include_str!("fixtures/streams.yaml"),
    include_str!("fixtures/faulty.yaml"),
    include_str!("fixtures/ingresses.yaml"),
    include_str!("fixtures/weirpolicies.yaml"),
    include_str!("fixtures/apisix.yaml"),
    include_str!("fixtures/apisix-gateway.yaml"),
];

/// Texts of the manifests, and what stands in their place in another version of the objects.
const EDITS: [(&str, &str); 48] = [
    ("10.1.0.", "10.2.0."),
    ("endpoints: [", "endpoints: [] # ["),
    ("ready: false", "ready: true"),
    ("port: 80", "port: 82"),
    ("appProtocol: kubernetes.io/h2c", "appProtocol: http"),
    ("/orders", "/changed"),
    ("type: Exact, value: /orders", "type: RegularExpression, value: /orders"),
    ("/old", "/new(er)?"),
    ("from: All", "from: Same"),
    ("team: shop", "team: another"),
    ("weight: 9", "weight: 0"),
    ("\"2026-01-01", "\"2026-01-03"),
    ("mode: Passthrough", "mode: Terminate"),
    ("api.bank.example", "shop.example"),
    ("sectionName: long-names", "sectionName: database"),
    ("service-name: orders", "service-name: bills"),
    ("name: orders, port: 81", "name: bills, port: 80"),
    ("none: {}", "cors: {}"),
    ("limit-count: {", "none: {"),
    ("sectionName: inner", "sectionName: open"),
    ("kind: HTTPRoute, name: bills }", "kind: HTTPRoute, name: twice }"),
    ("type: weir.dev/plugin", "type: Opaque"),
    ("key: hunter2", "key: hunter3"),
    ("ingressClassName: apisix", "ingressClassName: other"),
    ("serviceName: orders", "serviceName: bills"),
    ("plugin_config_name: common", "plugin_config_name: login"),
    ("name: none, enable: true", "name: cors, enable: true"),
    ("key: hunter4", "key: hunter5"),
    ("hosts: [shop.example", "hosts: [other.example"),
    ("kind: Secret, name: authority", "kind: Secret, name: another"),
    ("name: 169.254.169.254", "name: far.example"),
    ("scheme: https", "scheme: http"),
    ("{ name: request-id, enable: true }", "{ name: request-id, enable: false }"),
    ("type: Opaque", "type: bootstrap.kubernetes.io/token"),
    ("kind: GatewayProxy, name: proxy", "kind: GatewayProxy, name: gone"),
    ("count: 7", "count: 8"),
    ("key: hunter6", "key: hunter7"),
    ("ingressPort: 9100", "ingressPort: 7081"),
    ("kind: TCPRoute, name: older }, {", "kind: TCPRoute, name: newer }, {"),
    ("plugins: [{ name: cors, config: {} }]", "plugins: [{ name: ip-restriction, config: {} }]"),
    ("retries: 3", "retries: 4"),
    ("sectionName: calls", "sectionName: web"),
    ("priority: 900", "priority: 901"),
    ("vars: [[\"http", "vars: [\"wrong\", [\"http"),
    ("gatewayRef: { name: apisix }", "gatewayRef: { name: gone }"),
    ("upstream: { type: ewma }", "upstream: { type: none }"),
    ("upstream: { type: least_conn", "upstream: { slow_start: 5, type: least_conn"),
    (
        "endpoints: [{ addresses: [10.1.0.9] }]",
        "endpoints: [{ addresses: [10.1.0.9], hints: { forZones: [{ name: a }] } }]",
    ),
];

/// The objects of the manifests in each of their versions, first as they are.
static VERSIONS: LazyLock<Vec<Object>> = LazyLock::new(|| {
    let text = MANIFESTS.join("\n---\n");
    let of_text = |text: &str| World::from_manifests(text).unwrap().world.objects();
    let edited = EDITS.iter().flat_map(|(from, to)| of_text(&text.replace(from, to)));
    of_text(&text).into_iter().chain(edited).collect()
});

type Resources = BTreeMap<(ResourceList, String), (Value, ObjectRef)>;

/// What has been read of all translations together.
#[derive(Debug, Default, PartialEq)]
struct Reader {
    resources: Resources,
    statuses: BTreeMap<ObjectRef, ObjectStatus>,
}

impl TranslationReader for Reader {
    fn put(&mut self, resource: DerivedResource) {
        let DerivedResource { kind, id, value, origin, .. } = resource;
        self.resources.insert((kind, id), (value, origin));
    }

    fn remove(&mut self, kind: ResourceList, id: &str) {
        self.resources.remove(&(kind, id.to_owned()));
    }

    fn status(&mut self, status: ObjectStatus) {
        self.statuses.insert(status.object.clone(), status);
    }

    fn no_status(&mut self, object: &ObjectRef) {
        self.statuses.remove(object);
    }
}

/// A change of a world.
#[derive(Clone, Debug)]
enum Step {
    Put(usize),
    Remove(usize),
    /// Another controller, or this one, writes the status of the HTTPRoute `shop/orders`.
    Status(u8),
}

fn step(count: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..count).prop_map(Step::Put),
        3 => (0..count).prop_map(Step::Remove),
        1 => any::<u8>().prop_map(Step::Status),
    ]
}

fn make(step: &Step, versions: &[Object], world: &mut World, changes: &mut WorldChanges) {
    match step {
        Step::Put(number) => changes.put(world, versions[*number].clone()),
        Step::Remove(number) => drop(changes.remove(world, &versions[*number].reference())),
        Step::Status(number) => {
            let Some(route) = world.http_routes.values().find(|route| route.metadata.name == "orders") else { return };
            let mut route = (**route).clone();
            let controller = if number % 2 == 0 { "example.com/other" } else { "weir.dev/gateway-controller" };
            let entry = json!({ "parentRef": { "name": number.to_string() }, "controllerName": controller });
            route.status = serde_json::from_value(json!({ "parents": [entry] })).unwrap();
            let object = Object::HTTPRoute(Arc::new(route));
            changes.statuses.insert(object.reference());
            world.put(object);
        }
    }
}

/// Options of which each has a way of its own through the translation.
fn options(number: u8) -> KubeOptions {
    let pool = |last: &str| (IpAddr::from([10, 0, 0, 1]), last.parse().unwrap());
    let (first, last) = pool("10.0.0.2");
    let plain = KubeOptions { adopt_ingress_nginx: true, adopt_apisix: true, ..plugins::options() };
    match number {
        0 => plain,
        1 => KubeOptions { makes_services: true, addresses: GatewayAddresses::Pool { first, last }, ..plain },
        _ => KubeOptions { offline: true, ..plain },
    }
}

fn check(translator: &Translator, read: &Reader, world: &World, options: &KubeOptions) -> Result<(), TestCaseError> {
    let fresh = translate(world, options);
    let mut expected = Reader::default();
    fresh.resources.into_iter().for_each(|resource| expected.put(resource));
    fresh.statuses.into_iter().for_each(|status| expected.status(status));
    prop_assert_eq!(&read.resources, &expected.resources);
    prop_assert_eq!(&read.statuses, &expected.statuses);
    prop_assert_eq!(translator.events().cloned().collect::<Vec<_>>(), fresh.events);
    prop_assert_eq!(translator.owned(), fresh.owned);
    for ((kind, id), (_, origin)) in &read.resources {
        prop_assert_eq!(translator.origin(&format!("{kind}/{id}")), Some(origin.clone()));
    }
    Ok(())
}

fn config() -> ProptestConfig {
    let cases = if std::env::var_os("WEIR_TEST_FULL").is_some() { 5_000 } else { 40 };
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn changes_are_translated_as_from_scratch(
        number in 0_u8..3,
        batches in prop::collection::vec(prop::collection::vec(step(VERSIONS.len()), 1..4), 1..30),
    ) {
        after(&batches, &options(number))?;
    }
}

/// Applies batches of steps to a world, and checks after each what is translated.
fn after(batches: &[Vec<Step>], options: &KubeOptions) -> Result<(), TestCaseError> {
    let mut world = World::from_manifests(&MANIFESTS.join("\n---\n")).unwrap().world;
    let mut read = Reader::default();
    let mut translator = Translator::new(options.clone());
    translator.translate(&world, &WorldChanges::default(), &mut read);
    check(&translator, &read, &world, options)?;
    for batch in batches {
        let mut changes = WorldChanges::default();
        batch.iter().for_each(|step| make(step, &VERSIONS, &mut world, &mut changes));
        changes.objects.iter().chain(&changes.statuses).for_each(|object| drop(read.statuses.remove(object)));
        translator.translate(&world, &changes, &mut read);
        check(&translator, &read, &world, options)?;
    }
    Ok(())
}

/// A version of the object with this kind, namespace and name.
fn version(reference: &str) -> usize {
    let is_it = |object: &Object| {
        let ObjectRef { kind, namespace, name } = object.reference();
        format!("{kind:?} {namespace}/{name}") == reference
    };
    VERSIONS.iter().position(is_it).expect("the manifests have it")
}

#[test]
fn an_ingress_and_a_route_do_not_share_an_upstream_that_only_one_of_them_reaches_by_name() {
    let steps = [
        Step::Remove(version("BackendTLSPolicy shop/no-authority")),
        Step::Remove(version("EndpointSlice shop/bills-1")),
        Step::Put(version("HTTPRoute shop/bills")),
    ];
    after(&steps.map(|step| vec![step]), &options(2)).unwrap();
}

/// Counts what is read.
#[derive(Default)]
struct Counter {
    resources: Vec<String>,
    statuses: Vec<ObjectRef>,
}

impl TranslationReader for Counter {
    fn put(&mut self, resource: DerivedResource) {
        self.resources.push(format!("{}/{}", resource.kind, resource.id));
    }

    fn remove(&mut self, _: ResourceList, _: &str) {}

    fn status(&mut self, status: ObjectStatus) {
        self.statuses.push(status.object);
    }

    fn no_status(&mut self, _: &ObjectRef) {}
}

#[test]
fn a_change_of_endpoints_concerns_the_upstreams_of_its_service_alone() {
    let mut world = World::from_manifests(include_str!("fixtures/policies.yaml")).unwrap().world;
    let mut translator = Translator::new(KubeOptions::default());
    translator.translate(&world, &WorldChanges::default(), &mut Counter::default());
    let is_slice = |object: &Object| object.kind() == Kind::EndpointSlice;
    let slice = world.objects().into_iter().find(is_slice).expect("the manifests have one");
    let (mut changes, mut read) = (WorldChanges::default(), Counter::default());
    changes.put(&mut world, slice);
    translator.translate(&world, &changes, &mut read);
    assert!(!read.resources.is_empty());
    assert!(read.resources.iter().all(|resource| resource.starts_with("upstreams/")), "{:?}", read.resources);
    assert_eq!(read.statuses, []);
}

#[test]
fn a_change_of_a_route_concerns_no_other_route() {
    let mut world = World::from_manifests(include_str!("fixtures/shop.yaml")).unwrap().world;
    let mut translator = Translator::new(KubeOptions::default());
    translator.translate(&world, &WorldChanges::default(), &mut Counter::default());
    let route = world.http_routes.values().find(|route| route.metadata.name == "orders").expect("it is there").clone();
    let (mut changes, mut read) = (WorldChanges::default(), Counter::default());
    changes.put(&mut world, Object::HTTPRoute(route));
    translator.translate(&world, &changes, &mut read);
    assert!(!read.resources.is_empty());
    assert!(read.resources.iter().all(|one| one.starts_with("routes/httproute_shop_orders_")), "{:?}", read.resources);
    let routes: Vec<_> = read.statuses.iter().filter(|object| object.kind == Kind::HTTPRoute).collect();
    assert_eq!(routes.len(), 1);
}
