//! A gateway with some resources, and a page of the console that is logged in.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use weir_testkit::{
    Answer, Authority, BROWSER_DEADLINE, BrowserPage, Gateway, Identity, KeyKind, Origin, Program, TempDir,
    eventually_some, free_port, skipped,
};

use crate::api::{self, Api};
use crate::hub_peers::Subscriber;

/// Resources of each kind: the key in the Admin API, and the value. `ORIGIN` stands for the address of the backend.
pub(crate) const RESOURCES: &[(&str, &str)] = &[
    ("upstreams/orders", r#"{"name":"orders","nodes":{"ORIGIN":1,"127.0.0.1:1":0},"labels":{"team":"a"}}"#),
    (
        "services/shop",
        r#"{"name":"shop","upstream_id":"orders","plugins":{"limit-count":{"count":100000,"time_window":60}}}"#,
    ),
    (
        "routes/orders",
        r#"{"name":"orders","uri":"/orders/*","service_id":"shop","methods":["GET","POST"],"labels":{"team":"a","env":"prod"},
            "plugins":{"proxy-rewrite":{"headers":{"set":{"X-Shop":"1"}}},"fault-injection":{"abort":{"http_status":503,"vars":[[["arg_fail","==","1"]]]}}}}"#,
    ),
    (
        "routes/orders-2",
        r#"{"uri":"/orders/*","priority":10,"vars":[["arg_version","==","2"]],"upstream_id":"orders"}"#,
    ),
    (
        "routes/images",
        r#"{"uris":["/images/*","/img/*"],"hosts":["shop.example.com"],"upstream":{"nodes":{"ORIGIN":1}}}"#,
    ),
    ("consumers/jack", r#"{"username":"jack","plugins":{"key-auth":{"key":"key-of-jack"}},"labels":{"tier":"gold"}}"#),
    ("consumer_groups/gold", r#"{"plugins":{"limit-count":{"count":10,"time_window":60}}}"#),
    ("plugin_configs/standard", r#"{"plugins":{"cors":{}}}"#),
    ("global_rules/ids", r#"{"plugins":{"request-id":{}}}"#),
    ("secrets/vault/1", r#"{"uri":"http://127.0.0.1:1","prefix":"kv/weir","token":"a-token"}"#),
];

/// The page, what it shows, and what is behind it.
pub(crate) struct Bench {
    pub page: BrowserPage,
    pub gateway: Gateway,
    pub origin: Origin,
    /// To whom a hub of the node delivers.
    pub subscriber: Option<Subscriber>,
    /// Whether changes are made in a draft of files.
    has_draft: bool,
}

/// Where a node has its resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Embedded,
    /// With another node.
    Etcd,
    Files,
}

/// What a node needs beside it, until its page is closed.
#[derive(Default)]
pub(crate) struct Company {
    /// Another node that has its resources in the same etcd.
    pub other: Option<Gateway>,
    _etcd: Option<Program>,
    _data: Vec<TempDir>,
}

impl Store {
    /// The beginning of a node's file, and what it needs; lists of resources may follow if they are in the file. `None`, with a line that
    /// reports the test as skipped, if something is not installed.
    #[track_caller]
    pub(crate) fn file(self) -> Option<(String, Company)> {
        let mut company = Company::default();
        let file = match self {
            Store::Embedded => api::file(),
            Store::Files => api::file().replace("admin:\n", "admin:\n  store: file\n  draft: write\n"),
            Store::Etcd => {
                let mut etcd = Program::find("etcd")?;
                let data = TempDir::in_memory();
                let [client, peer] = [(); 2].map(|()| format!("http://127.0.0.1:{}", free_port()));
                etcd.args(["--name", "one", "--listen-client-urls", &client, "--advertise-client-urls", &client]);
                etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
                etcd.args(["--initial-cluster", &format!("one={peer}")]).arg("--data-dir").arg(data.join("data"));
                company._etcd = Some(Program::start(etcd, TempDir::new()));
                company._data.push(data);
                format!("{}store: {{ etcd: {{ hosts: [\"{client}\"] }} }}\n", api::file())
            }
        };
        Some((file, company))
    }
}

impl Bench {
    /// `None`, with a line that reports the test as skipped, if there is no browser.
    #[track_caller]
    pub(crate) fn start() -> Option<Bench> {
        let bench = Bench::logged_out(&api::file())?;
        bench.fill(&resources(&bench.origin));
        bench.log_in(api::ADMIN);
        Some(bench)
    }

    /// A page, not logged in, of a node that has results of the lab, a logger, and another node to be compared with, which is returned too.
    #[track_caller]
    pub(crate) fn with_neighbours(page: BrowserPage) -> (Bench, Gateway) {
        const KEY: &str = "the-key-of-this-node-at-the-other";
        let start = |file: &str| Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(file);
        let other = start(&format!("{}  - {{ name: here, key: {KEY}, role: viewer }}\n", api::file()));
        let url = format!("http://{}", api::admin_addr(&other));
        let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
        let settings =
            format!("  lab: {}\n  environments: [{{ name: live, url: '{url}', key: {KEY} }}]\n", lab.display());
        let bench = Bench::of(page, start(&(api::file() + &settings)));
        bench.fill(&resources(&bench.origin));
        let logger = json!({ "http-logger": { "uri": format!("http://{}/logs", bench.origin.addr()) } });
        bench.fill(&[("global_rules/logs".to_owned(), json!({ "plugins": logger }))]);
        (bench, other)
    }

    /// A page of a node with these resources, given the address of the backend, in a store.
    #[track_caller]
    pub(crate) fn in_store(
        page: BrowserPage,
        store: Store,
        resources: fn(&Origin) -> Vec<(String, Value)>,
    ) -> Option<(Bench, Company)> {
        let (mut file, mut company) = store.file()?;
        let origin = backend();
        let resources = resources(&origin);
        let start = |file: &str| Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(file);
        match store {
            Store::Embedded => {}
            Store::Files => file += &lists(&resources),
            Store::Etcd => {
                let [one, other] = [(); 2].map(|()| TempDir::in_memory());
                let of_node = |data: &TempDir| format!("{file}data_dir: {}\n", data.path().display());
                company.other = Some(start(&of_node(&other)));
                file = of_node(&one);
                company._data.extend([one, other]);
            }
        }
        let bench = Bench { origin, has_draft: store == Store::Files, ..Bench::of(page, start(&file)) };
        if store != Store::Files {
            bench.fill(&resources);
        }
        bench.log_in(api::ADMIN);
        Some((bench, company))
    }

    /// A gateway with this file, and the log-in page of its console.
    #[track_caller]
    pub(crate) fn logged_out(file: &str) -> Option<Bench> {
        let page = BrowserPage::open()?;
        Some(Bench::of(page, Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(file)))
    }

    /// The log-in page of a gateway's console.
    #[track_caller]
    pub(crate) fn of(page: BrowserPage, gateway: Gateway) -> Bench {
        let base = format!("http://{}/console/", api::admin_addr(&gateway));
        page.visit(&base);
        page.wait("the page of the log-in", "document.querySelector('#key')");
        Bench { page, gateway, origin: backend(), subscriber: None, has_draft: false }
    }

    /// Makes resources, in one revision for each hundred of them.
    pub(crate) fn fill(&self, resources: &[(String, Value)]) {
        let mut admin = Api::of(&self.gateway);
        for some in resources.chunks(100) {
            let operations: Vec<Value> =
                some.iter().map(|(key, value)| json!({ "put": key, "value": value })).collect();
            let answer = admin.ask("PATCH", "configs", "", &json!({ "operations": operations }).to_string());
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }

    /// Waits until a place of a resource is this, in use.
    #[track_caller]
    pub(crate) fn eventually_is(&self, key: &str, pointer: &str, expected: &Value) {
        self.put_into_use();
        eventually_some(&format!("{key}{pointer} is {expected}"), BROWSER_DEADLINE, || {
            (self.resource(key)?.pointer(pointer)? == expected).then_some(())
        });
    }

    pub(crate) fn has_draft(&self) -> bool {
        self.has_draft
    }

    /// For a page of [`Bench::of`].
    pub(crate) fn with_hub(self, subscriber: Subscriber, has_draft: bool) -> Bench {
        Bench { subscriber: Some(subscriber), has_draft, ..self }
    }

    /// Writes what is in the draft, if changes are made in one, and waits until it is served.
    #[track_caller]
    pub(crate) fn put_into_use(&self) {
        if !self.has_draft || self.page.evaluate("document.querySelector('.top a[href=\"#/draft\"]') === null") == true
        {
            return;
        }
        self.go("#/draft");
        self.wait_text("The node would accept this.");
        self.page.press("Ctrl+Enter");
        self.wait_text("Written, and served");
    }

    #[track_caller]
    pub(crate) fn log_in(&self, key: &str) {
        self.page.fill("#key", key);
        self.page.press("Enter");
        self.page.wait("the menu", "document.querySelector('#menu a')");
        self.settle("the first screen");
    }

    /// Goes to a place, and waits until all of it is there.
    #[track_caller]
    pub(crate) fn go(&self, place: &str) {
        self.page.evaluate(&format!("location.hash = {place:?}"));
        self.page.wait(place, &format!("location.hash === {place:?}"));
        self.settle(place);
    }

    /// Waits until a screen is there: its heading, and nothing in the place of what is being fetched.
    #[track_caller]
    pub(crate) fn settle(&self, what: &str) {
        let is_there = "document.querySelector('#content').dataset.place === location.hash.split('?')[0]
            && document.querySelector('#content h1')?.textContent && !document.querySelector('#content .waiting, #content .plot-place')
            && [...document.querySelectorAll('weir-editor')].every((one) => one.shadowRoot?.querySelector('.cm-content'))
            && new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))";
        self.page.wait(what, is_there);
    }

    #[track_caller]
    pub(crate) fn wait_text(&self, text: &str) {
        self.page.wait(&format!("the text `{text}`"), &format!("document.body.innerText.includes({text:?})"));
    }

    /// The JSON of a resource as the node has it; `None` if there is none.
    #[track_caller]
    pub(crate) fn resource(&self, key: &str) -> Option<serde_json::Value> {
        let answer = Api::of(&self.gateway).ask("GET", key, "", "");
        (answer.status == 200).then(|| api::json(&answer)["value"].clone())
    }

    pub(crate) fn admin_addr(&self) -> SocketAddr {
        api::admin_addr(&self.gateway)
    }

    /// Panics if axe-core, which the page has loaded, finds something at one of these places, or one of them scrolls to the side: in
    /// light and dark, wide and narrow.
    #[track_caller]
    pub(crate) fn check_accessible(&self, places: &[&str]) {
        for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)] {
            self.page.prefer(scheme);
            self.page.resize(width, 800);
            for place in places {
                self.go(place);
                let found = self.page.evaluate(
                    "axe.run(document, { resultTypes: ['violations'] }).then((found) => found.violations.map((one) =>
                        `${one.id}: ${one.nodes.map((node) => node.target.join(' ')).slice(0, 3).join(', ')}`).join('\\n'))",
                );
                assert_eq!(found, "", "{place} {scheme} {width}");
                let scrolls =
                    "document.querySelector('#content').scrollWidth > document.querySelector('#content').clientWidth";
                assert_eq!(self.page.evaluate(scrolls), false, "{place} scrolls to the side at {width}");
                let is_cut = "document.querySelector('.top').scrollWidth > document.querySelector('.top').clientWidth";
                assert_eq!(self.page.evaluate(is_cut), false, "the top of {place} is cut at {width}");
            }
        }
    }

    /// Panics if the page has complained of something, or has asked another host.
    #[track_caller]
    pub(crate) fn check_quiet(&self) {
        let complaints = self.page.complaints();
        assert!(complaints.is_empty(), "{complaints:#?}");
        let own = format!("http://{}/", self.admin_addr());
        let others: Vec<String> = self
            .page
            .requested()
            .into_iter()
            .filter(|url| !url.starts_with(&own) && !url.starts_with("data:"))
            .collect();
        assert!(others.is_empty(), "{others:#?}");
    }
}

/// [`RESOURCES`] with the address of the backend, and a certificate.
pub(crate) fn resources(origin: &Origin) -> Vec<(String, Value)> {
    let address = origin.addr().to_string();
    let read = |text: &str| serde_json::from_str(&text.replace("ORIGIN", &address)).expect("JSON");
    let mut all: Vec<(String, Value)> = RESOURCES.iter().map(|(key, text)| ((*key).to_owned(), read(text))).collect();
    let Identity { certificate, key } = certificate(JANUARY_2_2020, FEBRUARY_3_2041);
    all.push(("ssls/shop-cert".to_owned(), json!({ "snis": [SHOP], "cert": certificate, "key": key })));
    all
}

/// 10,000 routes of one upstream.
pub(crate) fn ten_thousand_routes(_: &Origin) -> Vec<(String, Value)> {
    let route = |number: usize| {
        let (uri, host) = (format!("/shop/{number}/*"), format!("h{}.example", number % 50));
        (format!("routes/r{number}"), json!({ "uri": uri, "host": host, "upstream_id": "u" }))
    };
    let upstream = ("upstreams/u".to_owned(), json!({ "nodes": { "127.0.0.1:1": 1 } }));
    std::iter::once(upstream).chain((0..10_000).map(route)).collect()
}

const SHOP: &str = "shop.example.com";

/// Days since 1970.
pub(crate) const JANUARY_2_2020: u64 = 18263;
pub(crate) const FEBRUARY_3_2041: u64 = 25966;

/// A certificate that is valid from one day to another, at noon.
pub(crate) fn certificate(from: u64, until: u64) -> Identity {
    let noon = |day: u64| UNIX_EPOCH + Duration::from_secs(day * 86_400 + 43_200);
    Authority::of_tests().identity_with(&[SHOP], KeyKind::Ecdsa, |parameters| {
        parameters.not_before = noon(from).into();
        parameters.not_after = noon(until).into();
    })
}

/// Resources as a file has them.
fn lists(resources: &[(String, Value)]) -> String {
    let mut lists: BTreeMap<&str, String> = BTreeMap::new();
    for (key, value) in resources {
        let (list, id) = key.split_once('/').expect("a list and an id");
        let mut value = value.clone();
        if list != "consumers" {
            value["id"] = id.into();
        }
        *lists.entry(list).or_default() += &format!("- {value}\n");
    }
    lists.iter().map(|(list, items)| format!("{list}:\n{items}")).collect()
}

/// A server for the upstreams, which fails where it is asked for something slow.
fn backend() -> Origin {
    Origin::serving(|request| match request.target.contains("slow") {
        true => Answer::status(503, ""),
        false => Answer::ok("{\"ok\": true}"),
    })
}

/// The source of axe-core; `None`, with a line that reports the test as skipped, if it is not installed.
pub(crate) fn axe() -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/axe/node_modules/axe-core/axe.min.js");
    let source = std::fs::read_to_string(path).ok();
    if source.is_none() {
        skipped("there is no axe-core");
    }
    source
}
