//! What a large cluster costs on a real API server, with the bounds of `figures`.

use std::cell::RefCell;
use std::time::Instant;

use serde_json::{Value, json};
use weir_testkit::{Client, DEADLINE, TempDir, eventually, scaled};

use crate::control_plane::{ControlPlane, replace};
use crate::edge::weir;
use crate::figures::{BOTH_MIB, ENDPOINT, Missed, PATIENCE, ROUTE, START, connections, text, times};
use crate::objects::{gateway, route, service};
use crate::real::endpoint;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/weir-system/leases";
/// Of the Gateway; the network is the test's own.
const PORT: u16 = 8080;
/// Writes are counted for as long as the Lease is renewed so many times.
const RENEWALS: usize = 5;

/// A Service with one endpoint of this name, for which the API server chooses an address.
fn of_service(name: &str, port: u16) -> [Value; 2] {
    let [mut object, slice] = service(name, ControlPlane::endpoint(port));
    object["spec"]["clusterIP"] = Value::Null;
    [object, slice]
}

/// How many objects of these kinds have been written since the API server started.
fn writes(plane: &ControlPlane) -> u64 {
    let (_, page) = plane.ask("GET", "/metrics", None);
    let is_write = |line: &&str| {
        let is_of = |label: &str, value: &str| line.contains(&format!("{label}=\"{value}\""));
        line.starts_with("apiserver_request_total{")
            && is_of("group", "gateway.networking.k8s.io")
            && ["POST", "PUT", "PATCH", "APPLY", "DELETE"].iter().any(|verb| is_of("verb", verb))
    };
    let value = |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
    page.lines().filter(is_write).map(value).sum::<f64>() as u64
}

/// When the Lease of the node was renewed.
fn renewal(plane: &ControlPlane) -> String {
    let all = plane.get(LEASES)["items"].as_array().cloned().unwrap_or_default();
    all.iter().map(|lease| lease["spec"]["renewTime"].to_string()).collect()
}

fn writes_in_a_while(plane: &ControlPlane) -> u64 {
    let before = writes(plane);
    for _ in 0..RENEWALS {
        let last = renewal(plane);
        eventually("the Lease is renewed", DEADLINE * 2, || renewal(plane) != last);
    }
    writes(plane) - before
}

#[test]
fn changes_are_served_soon_in_a_large_cluster_on_a_real_api_server() {
    let (routes, changes) = (scaled(50, 10_000), scaled(10, 200));
    let Some(plane) = ControlPlane::start() else { return };
    plane.create("/api/v1/namespaces", &json!({ "metadata": { "name": "shop" } }));
    plane.define_gateway_api();
    let (first, second) = (endpoint(&plane, "first"), endpoint(&plane, "second"));
    let begun = Instant::now();
    let all = (0..routes).flat_map(|number| {
        let name = format!("app-{number}");
        of_service(&name, first).into_iter().chain([route(&name, &format!("/{name}"))])
    });
    plane.create_all(gateway(PORT).into_iter().chain(all));
    println!("{routes} routes with their Services are created in {:?}", begun.elapsed());

    let data = TempDir::new();
    let file = format!(
        "{}data_dir: {}\nresource_listeners: [\":{PORT}\"]\nworker_processes: 2\n",
        plane.node(),
        data.path().display()
    );
    let start = Instant::now();
    let node = plane.beside(|| weir().start(&file));
    let (last, address) = (format!("/app-{}", routes - 1), ([127, 0, 0, 1], PORT).into());
    let is_served = || {
        plane.beside(|| Client::try_connect(address)).is_ok_and(|mut client| text(&mut client, &last) == "200 first")
    };
    eventually("the last route is served", PATIENCE, is_served);
    let mut missed = Missed::default();
    missed.check(&format!("start to {routes} routes"), start.elapsed(), START);
    missed.check("memory in MiB", node.rss() >> 20, BOTH_MIB);
    let begun = Instant::now();
    eventually("all statuses are written", PATIENCE, || writes(&plane) >= 2 * routes as u64);
    println!("statuses of {routes} routes: {:?} more", begun.elapsed());

    let mut clients = plane.beside(|| connections(address));
    let clients = &mut *clients;
    let slice = |number: usize| {
        let (port, expected) = if number.is_multiple_of(2) { (second, "200 second") } else { (first, "200 first") };
        let [_, slice] = of_service("app-1", port);
        (slice, expected)
    };
    let administrator = RefCell::new(plane.connect());
    let replace = |object| replace(&mut administrator.borrow_mut(), &object);
    missed.check_times("EndpointSlice", &times(clients, "/app-1", (0..changes).map(slice), replace), ENDPOINT);
    let moved = |number: usize| match number % 2 {
        0 => (route("app-2", "/elsewhere"), "404"),
        _ => (route("app-2", "/app-2"), "200"),
    };
    missed.check_times("HTTPRoute", &times(clients, "/app-2", (0..changes).map(moved), replace), ROUTE);
    missed.check(&format!("memory in MiB after {} changes", 2 * changes), node.rss() >> 20, BOTH_MIB);
    eventually("the last statuses are written", PATIENCE, || writes_in_a_while(&plane) == 0);
    assert_eq!(writes_in_a_while(&plane), 0, "nothing changes, so nothing is written");
    missed.assert_none();
}
