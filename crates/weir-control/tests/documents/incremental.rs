//! What a document is compiled to does not depend on what was compiled before: random edits, each compiled after the one before
//! and from scratch, with the same outcome.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use weir_control::document::{CompleteDocument, WrittenDocument};
use weir_control::text::yaml::TextLimits;
use weir_control::{Compiled, Parts, compile};
use weir_gateway::route::Lookup;
use weir_gateway::snapshot::{Chain, Link, Snapshot, Target};
use weir_plugin::{Exchange, Flow};
use weir_proto::Method;

use crate::plugins;

const HOSTS: [&str; 4] = ["a.test", "b.test", "x.b.test", "c.test"];
const PATHS: [&str; 6] = ["/", "/a", "/a/b", "/a/b/c", "/b", "/c"];

/// One change of one list of a document.
#[derive(Clone, Debug)]
struct Edit {
    list: &'static str,
    action: Action,
    /// Where, modulo the length of the list.
    at: usize,
}

#[derive(Clone, Debug)]
enum Action {
    Insert(Value),
    Replace(Value),
    Remove,
    MoveTo(usize),
    /// Of a setting, which is not a list.
    Set(Value),
}

impl Edit {
    fn apply(&self, document: &mut Map<String, Value>) {
        if let Action::Set(value) = &self.action {
            document.insert(self.list.to_owned(), value.clone());
            return;
        }
        let list =
            document.entry(self.list).or_insert_with(|| json!([])).as_array_mut().expect("all of them are lists");
        let at = self.at % (list.len() + 1);
        match &self.action {
            Action::Insert(value) => list.insert(at, value.clone()),
            Action::Replace(value) if at < list.len() => list[at] = value.clone(),
            Action::Remove if at < list.len() => drop(list.remove(at)),
            Action::MoveTo(to) if at < list.len() => {
                let moved = list.remove(at);
                list.insert(to % (list.len() + 1), moved);
            }
            _ => {}
        }
        // An empty one is not the same as none, and nothing else is tried of these.
        document.retain(|list, items| {
            !matches!(&**list, "listen") || items.as_array().is_none_or(|items| !items.is_empty())
        });
    }
}

fn nodes() -> impl Strategy<Value = Value> {
    prop::collection::btree_map(select(vec!["10.0.0.1:80", "10.0.0.2:80", "[::1]:80"]), 0..3_u32, 1..3)
        .prop_map(|nodes| json!(nodes))
}

fn upstream() -> impl Strategy<Value = Map<String, Value>> {
    (nodes(), select(vec!["roundrobin", "least_conn", "chash"]), 0..8_u32).prop_map(|(nodes, kind, extra)| {
        let mut upstream = json!({ "nodes": nodes, "type": kind });
        match extra {
            0 => upstream["checks"] = json!({ "active": { "type": "http", "http_path": "/up" } }),
            1 => upstream["retries"] = json!(3),
            // Causes a warning.
            2 => upstream["scheme"] = json!("https"),
            _ => {}
        }
        upstream.as_object().expect("a map").clone()
    })
}

fn some_plugins() -> impl Strategy<Value = Value> {
    let plugin = prop_oneof![
        6 => (select(vec!["mark-early", "mark-late", "mark-access"]), select(vec!["x", "y"]))
            .prop_map(|(name, text)| (name, json!({ "text": text }))),
        // The second of these causes a warning.
        1 => Just(("guarded", json!({ "limits": [{ "count": 1 }] }))),
        1 => Just(("guarded", json!({ "limits": [{ "count": 1 }], "old": true }))),
        1 => Just(("door", json!({}))),
        1 => Just(("port", json!({}))),
        2 => (select(vec!["s", "t"]), select(vec!["one", "one", "one", "two"]))
            .prop_map(|(secret, terms)| ("tells", json!({ "secret": secret, "terms": terms }))),
        1 => Just(("traffic-split", json!({}))),
    ];
    prop::collection::vec(plugin, 0..3).prop_map(|plugins| {
        plugins
            .into_iter()
            .filter(|(name, _)| *name != "traffic-split")
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    })
}

fn with_id(
    id: impl Strategy<Value = &'static str>,
    rest: impl Strategy<Value = Value>,
) -> impl Strategy<Value = Value> {
    (id, rest).prop_map(|(id, mut value)| {
        value["id"] = json!(id);
        value
    })
}

fn route() -> impl Strategy<Value = Value> {
    let uris = prop::collection::vec(select(vec!["/", "/a", "/a/b", "/a/*", "/*", "/a/*/c", "/b*"]), 1..3);
    let hosts = prop::option::weighted(0.4, prop::collection::vec(select(vec!["a.test", "*.test", "*.b.test"]), 1..3));
    let target = prop_oneof![
        3 => upstream().prop_map(|upstream| ("upstream", json!(upstream))),
        3 => select(vec!["u1", "u2", "u3"]).prop_map(|id| ("upstream_id", json!(id))),
        3 => select(vec!["s1", "s2"]).prop_map(|id| ("service_id", json!(id))),
    ];
    let config = prop::option::weighted(0.3, select(vec!["c1", "c2"]));
    let rest = (uris, hosts, target, config, some_plugins(), 0..12_u32, select(vec![0, 0, 0, 1]));
    let rest = rest.prop_map(|(uris, hosts, (key, target), config, plugins, extra, priority)| {
        let mut route = json!({ "uris": uris, key: target, "plugins": plugins, "priority": priority });
        if let Some(hosts) = hosts {
            route["hosts"] = json!(hosts);
        }
        if let Some(config) = config {
            route["plugin_config_id"] = json!(config);
        }
        match extra {
            0 => route["status"] = json!(0),
            1 => route["methods"] = json!(["POST"]),
            2 => route["vars"] = json!([["arg_v", "==", "1"]]),
            // Causes a warning.
            3 => route["vars"] = json!([["no_such_variable", "==", "1"]]),
            _ => {}
        }
        route
    });
    with_id(select(vec!["r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8"]), rest)
}

fn item(list: &'static str) -> BoxedStrategy<Value> {
    match list {
        "routes" => route().boxed(),
        "upstreams" => with_id(select(vec!["u1", "u2", "u3"]), upstream().prop_map(Value::Object)).boxed(),
        "services" => {
            let service = (upstream(), some_plugins(), any::<bool>()).prop_map(|(upstream, plugins, is_hosted)| {
                let hosts = if is_hosted { json!(["b.test"]) } else { json!([]) };
                json!({ "upstream": upstream, "plugins": plugins, "hosts": hosts })
            });
            with_id(select(vec!["s1", "s2"]), service).boxed()
        }
        "consumers" => some_plugins()
            .prop_map(|_| json!({ "username": "jack", "plugins": { "door": { "key": "k" }, "mark-late": { "text": "jack" } } }))
            .boxed(),
        "plugin_metadata" => (1..3_u32).prop_map(|least| json!({ "id": "guarded", "least": least })).boxed(),
        "listen" => (9_443..9_446_u16, any::<bool>())
            .prop_map(|(port, tls)| json!({ "address": format!("127.0.0.1:{port}"), "tls": tls }))
            .boxed(),
        _ => with_id(select(vec!["c1", "c2"]), some_plugins().prop_map(|plugins| json!({ "plugins": plugins }))).boxed(),
    }
}

fn edit() -> impl Strategy<Value = Edit> {
    let setting = (select(vec!["allow_encoded_slashes", "merge_slashes"]), any::<bool>());
    let setting = setting.prop_map(|(list, value)| Edit { list, action: Action::Set(json!(value)), at: 0 });
    prop_oneof![15 => edit_of_list(), 1 => setting]
}

fn edit_of_list() -> impl Strategy<Value = Edit> {
    let list = prop_oneof![
        10 => Just("routes"),
        2 => Just("upstreams"),
        2 => Just("services"),
        2 => Just("plugin_configs"),
        1 => Just("global_rules"),
        1 => Just("consumers"),
        1 => Just("plugin_metadata"),
        1 => Just("listen"),
    ];
    list.prop_flat_map(|list| {
        let action = prop_oneof![
            4 => item(list).prop_map(Action::Insert),
            4 => item(list).prop_map(Action::Replace),
            3 => Just(Action::Remove),
            1 => (0..8_usize).prop_map(Action::MoveTo),
        ];
        (action, 0..8_usize).prop_map(move |(action, at)| Edit { list, action, at })
    })
}

/// A document with something of everything.
fn beginning() -> Map<String, Value> {
    let nodes = json!({ "10.0.0.1:80": 1 });
    let beginning = json!({
        "upstreams": [{ "id": "u1", "nodes": nodes }, { "id": "u2", "nodes": nodes }, { "id": "u3", "nodes": nodes }],
        "services": [{ "id": "s1", "upstream": { "nodes": nodes } }, { "id": "s2", "upstream_id": "u1", "hosts": ["b.test"] }],
        "plugin_configs": [{ "id": "c1", "plugins": { "mark-early": { "text": "c" } } }, { "id": "c2", "plugins": {} }],
        "routes": [
            { "id": "r1", "uri": "/*", "upstream_id": "u1" },
            { "id": "r2", "uri": "/a", "service_id": "s1" },
            { "id": "r3", "uri": "/a/*", "upstream": { "nodes": nodes }, "plugin_config_id": "c1" },
        ],
    });
    beginning.as_object().expect("a map").clone()
}

fn document(content: &Map<String, Value>) -> CompleteDocument {
    let text = serde_json::to_string_pretty(content).expect("is JSON");
    let document = WrittenDocument::parse("weir.yaml", &text, &|_| None, TextLimits::default());
    document.expect("JSON is YAML").without_secrets().alone()
}

/// All that a document means, with names in place of numbers; or all that is wrong with it.
fn outcome(compiled: &Result<Compiled, Vec<weir_control::Diagnostic>>) -> String {
    match compiled {
        Err(faults) => format!("{faults:#?}"),
        Ok(Compiled { snapshot, warnings, .. }) => format!("{}{warnings:#?}", meaning(snapshot)),
    }
}

fn meaning(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let upstreams: BTreeMap<&str, String> =
        snapshot.upstreams.iter().map(|(_, upstream)| (&*upstream.name, format!("{upstream:?}"))).collect();
    assert_eq!(upstreams.len(), snapshot.upstreams.len());
    let mut routes = BTreeMap::new();
    for (_, route) in snapshot.routes.iter() {
        let target = match route.target {
            Target::Nothing => "nothing",
            Target::Responder(_) => "a responder",
            Target::Upstream(number) => &snapshot.upstreams[number].name,
        };
        let settings = (route.timeouts, route.upgrades, (route.encoded_separators, route.merge_slashes));
        let shown = format!("{:?} {target} {settings:?} {}", route.facts, shown(&route.chain));
        routes.insert(&*route.facts.route_id, shown);
    }
    assert_eq!(routes.len(), snapshot.routes.len());
    let overlays: Vec<String> = snapshot.overlays.iter().map(|overlay| shown(&overlay.chain)).collect();
    write!(text, "{upstreams:#?}{routes:#?}{overlays:?}{}", shown(&snapshot.unmatched)).expect("there is room");
    write!(text, "{:?}{:?}", snapshot.secret_arguments, snapshot.clients).expect("there is room");
    let exchange = Exchange::default();
    for (host, path) in HOSTS.iter().flat_map(|host| PATHS.map(|path| (host, path))) {
        let remote_addr: IpAddr = [127, 0, 0, 1].into();
        let method = Method::Get;
        let lookup = Lookup {
            host: host.as_bytes(),
            path: path.as_bytes(),
            method,
            listener: None,
            remote_addr,
            variables: &exchange,
        };
        let id = |number: u32| &*snapshot.routes[number as usize].facts.route_id;
        let mut candidates: Vec<String> = snapshot
            .table
            .explain(&lookup)
            .iter()
            .map(|it| format!("{} {:?}", id(it.route), (&it.uri, &it.verdict)))
            .collect();
        // Those of other hosts come in the order of their numbers.
        let others = candidates.iter().position(|it| it.contains("Host)")).unwrap_or(candidates.len());
        candidates[others..].sort();
        writeln!(text, "{host}{path}: {:?} {candidates:?}", snapshot.table.find(&lookup).map(id))
            .expect("there is room");
    }
    text
}

/// Which plugins run, when, and what they do.
fn shown(chain: &Chain) -> String {
    let link = |link: &Link| {
        let mut exchange = Exchange::default();
        let end = match link.step.on_request(&mut exchange) {
            Ok(Flow::Wait(_)) => panic!("none of these plugins waits"),
            end => end.map(|_| ()),
        };
        let body = String::from_utf8_lossy(&exchange.body).into_owned();
        format!("{} {:?} {end:?} {body}", link.plugin, link.rank)
    };
    let links = |links: &[Link]| links.iter().map(link).collect::<Vec<_>>();
    format!("{:?} {:?} {}", links(&chain.request), links(&chain.response), chain.anonymous)
}

/// How many sequences of edits are tried; with `WEIR_TEST_FULL` as many as the project promises.
fn cases() -> u32 {
    if std::env::var_os("WEIR_TEST_FULL").is_some() { 10_000 } else { 200 }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 2_000, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn compiling_a_change_is_compiling_from_scratch(edits in prop::collection::vec(edit(), 1..16)) {
        let mut content = beginning();
        let mut parts: Option<Parts> = None;
        for edit in edits {
            let before = document(&content);
            let compiled = compile(&before, &plugins::TELLING, parts.as_ref());
            // A document that is refused leaves what was there.
            parts = compiled.map(|compiled| compiled.parts).ok().or(parts);
            edit.apply(&mut content);
            let after = document(&content);
            let changed = compile(&after, &plugins::TELLING, parts.as_ref());
            let scratch = compile(&after, &plugins::TELLING, None);
            prop_assert_eq!(outcome(&changed), outcome(&scratch));
        }
    }
}

#[test]
fn unchanged_resources_keep_their_pieces() {
    let mut content = beginning();
    let first = compile(&document(&content), &plugins::TELLING, None).expect("is right");
    content["routes"][1]["uri"] = json!("/changed");
    let second = compile(&document(&content), &plugins::TELLING, Some(&first.parts)).expect("is right");
    assert!(second.snapshot.upstreams.changes_from(&first.snapshot.upstreams).is_empty());
    assert_eq!(second.snapshot.routes.changes_from(&first.snapshot.routes), [1]);
    content.insert("enable_access_log".to_owned(), json!(false));
    content["upstreams"][2]["retries"] = json!(1);
    let third = compile(&document(&content), &plugins::TELLING, Some(&second.parts)).expect("is right");
    assert_eq!(third.snapshot.upstreams.changes_from(&second.snapshot.upstreams), [2], "settings concern no upstream");
}

/// The numbers of the routes that are other pieces after a change.
fn recompiled(content: &mut Map<String, Value>, key: &str, value: Value) -> Vec<usize> {
    let first = compile(&document(content), &plugins::TELLING, None).expect("is right");
    content.insert(key.to_owned(), value);
    let second = compile(&document(content), &plugins::TELLING, Some(&first.parts)).expect("is right");
    second.snapshot.routes.changes_from(&first.snapshot.routes)
}

#[test]
fn change_of_a_shared_setting_recompiles_only_routes_that_depend_on_it() {
    let mut content = beginning();
    let with = |plugin: &str, options: Value| json!({ plugin: options });
    content["routes"][0]["plugins"] = with("door", json!({}));
    content["routes"][1]["plugins"] = with("guarded", json!({ "limits": [] }));
    content["routes"][2]["plugins"] = with("port", json!({}));
    content["plugin_configs"][0]["plugins"] = with("door", json!({}));
    let consumers = json!([{ "username": "jack", "plugins": { "door": { "key": "k" } } }]);
    assert_eq!(recompiled(&mut content, "consumers", consumers), [0, 2], "one has the plugin from its plugin_config");
    let metadata = json!([{ "id": "guarded", "least": 2 }]);
    assert_eq!(recompiled(&mut content, "plugin_metadata", metadata), [1]);
    let listen = json!([{ "address": "127.0.0.1:9443", "tls": true }]);
    assert_eq!(recompiled(&mut content, "listen", listen), [2]);
    assert_eq!(recompiled(&mut content, "keepalive_timeout", json!("10s")), [0; 0]);
    assert_eq!(recompiled(&mut content, "allow_encoded_slashes", json!(true)), [0, 1, 2]);
}
