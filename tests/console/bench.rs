//! A gateway with some resources, and a page of the console that is logged in.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Map, Value};
use weir_testkit::{Answer, BrowserPage, Gateway, Origin, Program, TempDir, free_port, skipped};

use crate::api::{self, Api};

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
    /// Whether changes are made in a draft of files.
    has_draft: bool,
}

/// An etcd, and another node that has its resources there.
pub(crate) struct OtherNode {
    pub other: Gateway,
    _etcd: Program,
    _data: [TempDir; 3],
}

impl Bench {
    /// `None`, with a line that reports the test as skipped, if there is no browser.
    #[track_caller]
    pub(crate) fn start() -> Option<Bench> {
        let bench = Bench::logged_out(&api::file())?;
        bench.fill();
        bench.log_in(api::ADMIN);
        Some(bench)
    }

    /// The same with the resources in an etcd, which another node shares.
    #[track_caller]
    pub(crate) fn on_etcd() -> Option<(OtherNode, Bench)> {
        let page = BrowserPage::open()?;
        let mut etcd = Program::find("etcd")?;
        let data = [(); 3].map(|()| TempDir::in_memory());
        let [client, peer] = [(); 2].map(|()| format!("http://127.0.0.1:{}", free_port()));
        etcd.args(["--name", "one", "--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        etcd.args(["--initial-cluster", &format!("one={peer}")]).arg("--data-dir").arg(data[2].join("data"));
        let etcd = Program::start(etcd, TempDir::new());
        // A node waits until its store answers.
        let [gateway, other] = [0, 1].map(|node: usize| {
            let directory = data[node].path().display();
            let file =
                format!("{}data_dir: {directory}\nstore: {{ etcd: {{ hosts: [\"{client}\"] }} }}\n", api::file());
            Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file)
        });
        let bench = Bench::of(page, gateway);
        bench.fill();
        bench.log_in(api::ADMIN);
        Some((OtherNode { other, _etcd: etcd, _data: data }, bench))
    }

    /// The same with the resources in the file of the gateway, which the console may write.
    #[track_caller]
    pub(crate) fn in_files() -> Option<Bench> {
        let page = BrowserPage::open()?;
        let origin = backend();
        let mut lists: Map<String, Value> = Map::new();
        for (key, value) in RESOURCES {
            let (list, id) = key.split_once('/').expect("a list and an id");
            let text = value.replace("ORIGIN", &origin.addr().to_string());
            let mut value: Value = serde_json::from_str(&text).expect("JSON");
            if list != "consumers" {
                value["id"] = id.into();
            }
            let items = lists.entry(list).or_insert_with(|| Value::Array(Vec::new()));
            items.as_array_mut().expect("a list").push(value);
        }
        let mut file = api::file().replace("admin:\n", "admin:\n  store: file\n  draft: write\n");
        for (list, items) in &lists {
            file += &format!("{list}:\n");
            for item in items.as_array().expect("a list") {
                file += &format!("- {item}\n");
            }
        }
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file);
        let bench = Bench { origin, has_draft: true, ..Bench::of(page, gateway) };
        bench.log_in(api::ADMIN);
        Some(bench)
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
        Bench { page, gateway, origin: backend(), has_draft: false }
    }

    /// Makes the resources.
    fn fill(&self) {
        let mut admin = Api::of(&self.gateway);
        for (key, value) in RESOURCES {
            admin.put(key, &value.replace("ORIGIN", &self.origin.addr().to_string()));
        }
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
