//! Traffic while the cluster is gone, its clock jumps, or the addresses of a Service move; and how soon the node has what changed.
//! `--nocapture` shows the times.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testkit::{Answer, DEADLINE, Origin, OriginConnection, Reading, TempDir, eventually, scaled, skipped};

use crate::controllers::{self, is_accepted};
use crate::edge::{Edge, serving, weir};
use crate::load::Load;
use crate::objects::{route, service};
use crate::pulling::{MutualTrust, RunningController, pulling};
use crate::stand_in::{ObjectPath, StandIn};

/// Requests in a second.
const RATE: u32 = 100;

fn load(edge: &Edge) -> Load {
    Load::start(&format!("http://{}/orders --connections 2 --rate {RATE}", edge.address()))
}

/// Waits until a change is served, and says how long that took.
#[track_caller]
fn converges(what: &str, is_served: impl FnMut() -> bool) {
    let start = Instant::now();
    eventually(what, DEADLINE, is_served);
    println!("{what}: after {:?}", start.elapsed());
}

/// The server, and the controller if there is one, are gone for a minute in full, and objects change before, meanwhile and afterwards.
#[track_caller]
fn lives_through_an_outage(cluster: &mut StandIn, mut controller: Option<&mut RunningController>, edge: &Edge) {
    let outage = Duration::from_secs(scaled(2, 60) as u64);
    let load = load(edge);
    // A route to a Service that does not exist.
    let change = |cluster: &StandIn, path: &str| cluster.apply([route("other", path)]);
    change(cluster, "/before");
    converges("a change before the outage is served", || edge.get("/before").status == 500);
    let requests = || edge.node.metrics().sum("weir_http_requests_total", &[]);
    cluster.stop();
    if let Some(controller) = &mut controller {
        controller.crash();
    }
    edge.wait_store(false);
    let (start, answered) = (Instant::now(), requests());
    change(cluster, "/meanwhile");
    let least = RATE as f64 * outage.as_secs_f64() / 4.0;
    // What sends the requests may stand still as well.
    eventually("the outage is long enough, and requests are answered in it", outage + DEADLINE, || {
        start.elapsed() >= outage && requests() - answered >= least
    });
    assert_eq!(edge.get("/meanwhile").status, 404, "no other way leads to the objects");
    cluster.resume();
    if let Some(controller) = &mut controller {
        controller.restart();
    }
    let what = format!("a change from the outage of {outage:?} is served");
    converges(&what, || edge.get("/meanwhile").status == 500);
    change(cluster, "/after");
    converges("a change after the outage is served", || edge.get("/after").status == 500);
    println!("{} requests, of which none failed", load.finish_unharmed());
}

#[test]
fn requests_are_answered_while_the_server_is_gone_for_a_minute() {
    let (mut cluster, _origin, edge) = serving();
    lives_through_an_outage(&mut cluster, None, &edge);
}

#[test]
fn requests_are_answered_while_the_server_and_the_controller_are_gone_for_a_minute() {
    let (mut cluster, _origin) = controllers::cluster();
    let trust = MutualTrust::new();
    let mut controller = RunningController::ready(&cluster, &trust);
    let edge = pulling(&cluster, &trust, &[&controller]);
    edge.wait("/orders", 200);
    lives_through_an_outage(&mut cluster, Some(&mut controller), &edge);
}

/// A library that gives a process a clock of its own, by a file. It leaves alone the clock by which times are measured.
fn libfaketime() -> Option<PathBuf> {
    let libraries = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/debian/usr/lib");
    let folders = fs::read_dir(libraries).into_iter().flatten().flatten();
    let found = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
    if found.is_none() {
        skipped("there is no libfaketime");
    }
    found
}

/// What the Lease says of the time when it was renewed, and how often it had another holder.
fn lease(cluster: &StandIn) -> (String, Value) {
    let (plural, namespace) = ("leases".to_owned(), Some("weir-system".to_owned()));
    let path = ObjectPath { plural, namespace, name: Some("weir-status-writer".to_owned()) };
    let spec = cluster.objects().get(&path).unwrap_or_default()["spec"].take();
    (spec["renewTime"].as_str().unwrap_or_default().to_owned(), spec["leaseTransitions"].clone())
}

#[test]
fn a_clock_that_jumps_harms_no_request_and_delays_no_change() {
    let Some(library) = libfaketime() else { return };
    let cluster = StandIn::start();
    let place = TempDir::new();
    let clock = place.join("clock");
    // The process reads the file at any time, and never a part of it.
    let jump = |offset: &str| {
        let next = place.join("next-clock");
        fs::write(&next, format!("{offset}\n")).expect("it can be written");
        fs::rename(&next, &clock).expect("it can be renamed");
    };
    jump("+0");
    let origin = Origin::serving(|_| Answer::ok("orders"));
    cluster.apply([route("orders", "/orders")]);
    cluster.apply(service("orders", origin.addr()));
    let launcher = weir()
        .env("LD_PRELOAD", library.to_str().expect("text"))
        .env("FAKETIME_TIMESTAMP_FILE", clock.to_str().expect("text"))
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let edge = Edge::launch(launcher, &cluster, "");
    edge.wait("/orders", 200);
    eventually("the statuses are written", DEADLINE, || is_accepted(&cluster, "orders"));
    let load = load(&edge);
    let transitions = lease(&cluster).1;
    // A day ahead, and two days back.
    for (number, offset) in ["+86400", "-86400", "+0"].into_iter().enumerate() {
        let date = |renewed: &str| renewed.split('T').next().unwrap_or_default().to_owned();
        let before = date(&lease(&cluster).0);
        jump(offset);
        eventually("the process has noticed", DEADLINE, || date(&lease(&cluster).0) != before);
        let name = format!("jump-{number}");
        cluster.apply([route(&name, &format!("/{name}"))]);
        converges(&format!("a change after a jump to {offset} seconds is served"), || {
            edge.get(&format!("/{name}")).status == 500
        });
        eventually("its status is written", DEADLINE, || is_accepted(&cluster, &name));
    }
    assert_eq!(lease(&cluster).1, transitions, "the Lease has not been lost");
    assert!(load.finish_unharmed() > 0);
}

/// Slices of a Service as a cluster with both families of addresses has them: each pod is in one of each family.
fn slice(name: &str, family: &str, endpoint: SocketAddr) -> Value {
    let [_, mut slice] = service("orders", endpoint);
    slice["metadata"]["name"] = name.into();
    slice["addressType"] = family.into();
    slice
}

fn families(first: &str, second: &str, port: SocketAddr) -> Value {
    let [mut of_service, _] = service("orders", port);
    of_service["spec"]["ipFamilies"] = json!([first, second]);
    of_service
}

#[test]
fn a_service_with_both_families_of_addresses_is_reached_by_its_primary_one() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skipped("there is no IPv6");
    }
    let at = |address: &str, name: &'static str| {
        Origin::serving_at(address.parse().expect("an address"), move |_| Answer::ok(name))
    };
    let (four, six) = (at("127.0.0.1:0", "four"), at("[::1]:0", "six"));
    let cluster = StandIn::start();
    cluster.apply([route("orders", "/orders"), families("IPv4", "IPv6", four.addr())]);
    cluster.apply([slice("orders-4", "IPv4", four.addr()), slice("orders-6", "IPv6", six.addr())]);
    let edge = Edge::start(&cluster);
    edge.wait("/orders", 200);
    let load = load(&edge);
    let answers = |name: &str| edge.get("/orders").text() == name;
    assert!((0..20).all(|_| answers("four")), "no pod is there twice");
    // A cluster allows it for a Service that is made anew.
    cluster.apply([families("IPv6", "IPv4", four.addr())]);
    converges("the other family is used once it is the primary one", || answers("six"));
    assert!((0..20).all(|_| answers("six")));
    // The address moves from one slice to another, and is in both for a moment.
    cluster.apply([slice("orders-7", "IPv6", six.addr())]);
    cluster.objects().delete("endpointslices", "shop", "orders-6");
    let next = at("[::1]:0", "next");
    cluster.apply([slice("orders-8", "IPv6", next.addr())]);
    converges("a new address is used beside the one that has moved", || answers("next"));
    eventually("the one that has moved, too", DEADLINE, || answers("six"));
    cluster.objects().delete("endpointslices", "shop", "orders-7");
    converges("an address whose last slice is gone is not used", || (0..20).all(|_| answers("next")));
    cluster.objects().delete("endpointslices", "shop", "orders-4");
    // Each change before this one has been served.
    cluster.apply([route("orders-end", "/end")]);
    edge.wait("/end", 500);
    assert!((0..20).all(|_| answers("next")), "slices of the other family change nothing");
    assert!(load.finish_unharmed() > 0);
}

/// An origin at every address of the loopback network, and those at which it has been reached.
fn everywhere() -> (Origin, Arc<Mutex<BTreeSet<IpAddr>>>) {
    let reached = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&reached);
    let any = "0.0.0.0:0".parse().expect("an address");
    let origin = Origin::scripted_at(any, Reading::Strict, move |connection: &mut OriginConnection| {
        let address = connection.socket().local_addr().expect("it is connected").ip();
        while connection.request().is_ok() {
            seen.lock().expect("no test panics with it").insert(address);
            if connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    });
    (origin, reached)
}

#[test]
fn addresses_of_fifty_slices_are_used_while_they_are_ready() {
    let (origin, reached) = everywhere();
    let cluster = StandIn::start();
    let at = |last: u8| SocketAddr::from(([127, 0, 1, last], origin.addr().port()));
    let mut slices: Vec<Value> = (1..=50).map(|last| slice(&format!("orders-{last}"), "IPv4", at(last))).collect();
    // One that is not ready, one that ends, and one that says nothing of itself.
    slices[1]["endpoints"][0]["conditions"] = json!({ "ready": false });
    slices[2]["endpoints"][0]["conditions"] = json!({ "ready": false, "serving": true, "terminating": true });
    slices[3]["endpoints"][0]["conditions"] = Value::Null;
    let [of_service, _] = service("orders", at(1));
    cluster.apply([route("orders", "/orders"), of_service]);
    cluster.apply(slices);
    let edge = Edge::start(&cluster);
    edge.wait("/orders", 200);
    let load = load(&edge);
    let all = |skipped: &[u8]| (1..=50).filter(|last| !skipped.contains(last)).map(|last| at(last).ip()).collect();
    let seen = || reached.lock().expect("no test panics with it").clone();
    let wanted: BTreeSet<IpAddr> = all(&[2, 3]);
    eventually("each of them is reached", DEADLINE, || edge.get("/orders").status == 200 && seen() == wanted);
    for last in 2..=50 {
        cluster.objects().delete("endpointslices", "shop", &format!("orders-{last}"));
    }
    let only = BTreeSet::from([at(1).ip()]);
    converges("one is left of 50 slices", || {
        reached.lock().expect("no test panics with it").clear();
        (0..20).all(|_| edge.get("/orders").status == 200) && seen() == only
    });
    assert!(load.finish_unharmed() > 0);
}

#[test]
fn a_namespace_that_is_deleted_and_made_again_changes_nothing_in_others() {
    let (cluster, origin, edge) = serving();
    let in_other = |mut object: Value| {
        object["metadata"]["namespace"] = "blog".into();
        object
    };
    let mut posts = in_other(route("posts", "/posts"));
    posts["spec"]["parentRefs"][0]["namespace"] = "shop".into();
    let mut gateway = cluster.objects().all("gateways").swap_remove(0);
    gateway["spec"]["listeners"][0]["allowedRoutes"] = json!({ "namespaces": { "from": "All" } });
    cluster.apply([gateway]);
    let objects = || service("posts", origin.addr()).map(in_other).into_iter().chain([posts.clone()]);
    let load = load(&edge);
    for round in 0..3 {
        cluster.apply(objects());
        converges("its route is served", || edge.get("/posts").status == 200);
        // A cluster deletes them in any order.
        let mut kinds = [("endpointslices", "posts-1"), ("httproutes", "posts"), ("services", "posts")];
        kinds.rotate_left(round);
        for (kind, name) in kinds {
            cluster.objects().delete(kind, "blog", name);
        }
        converges("its route is gone", || edge.get("/posts").status == 404);
    }
    assert!(load.finish_unharmed() > 0);
}
