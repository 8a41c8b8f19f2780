//! Tests plugins over real sockets, from the side of clients and upstreams: the origin answers with the request it has received.

mod answers;
mod attacks;
mod batches;
mod beside;
mod bodies;
mod caching;
mod compatibility;
mod consumers;
mod crs;
mod crs_cases;
mod echo;
mod envoy_service;
mod error_pages;
mod exact_limits;
mod ext_authz;
mod ext_proc;
mod fetched_pages;
mod forward_auth;
mod functions;
mod graphql;
mod graphql_limits;
mod grpc_transcode;
mod http2_streams;
mod jwe;
mod keycloak;
mod ldap;
mod limits;
mod list;
mod log_services;
mod loggers;
mod lua;
mod masking;
mod neighbours;
mod oas_validator;
mod oidc;
mod opa;
mod openmetrics;
#[path = "../records/otlp.rs"]
mod otlp;
mod price;
mod prompts;
mod redis;
mod response_rates;
mod rewrites;
mod secrets;
mod shared_limits;
mod skywalking;
mod slapd;
mod splits;
mod sse_fanout;
mod tracing;
mod traffic;
mod transforms;
#[cfg(feature = "wasm")]
mod wasm;

use std::process::Command;

use weir_testkit::{Answer, Gateway, Origin, TempDir};

/// A gateway in front of one origin, whose routes get plugins.
struct Rig {
    gateway: Gateway,
    origin: Origin,
}

impl Rig {
    /// One route for every path, with these plugins, written as a YAML flow map.
    fn with(plugins: &str) -> Rig {
        Rig::workers(1, plugins)
    }

    fn workers(workers: usize, plugins: &str) -> Rig {
        let origin = Origin::serving(|request| {
            let status = request.target.strip_prefix("/status/").and_then(|status| status.parse().ok()).unwrap_or(200);
            Answer::with(
                status,
                "Content-Type: text/plain\r\nETag: \"1\"\r\n",
                format!("{} {}", request.method, request.target),
            )
        });
        let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&file(workers, plugins, &origin));
        Rig { gateway, origin }
    }

    /// Changes the plugins of the route, and waits until they are in use.
    fn change(&self, plugins: &str) {
        self.gateway.rewrite(&file(1, plugins, &self.origin));
    }
}

fn file(workers: usize, plugins: &str, origin: &Origin) -> String {
    format!(
        "worker_processes: {workers}
routes:
  - id: all
    uri: /*
    plugins: {plugins}
    upstream: {{ type: roundrobin, nodes: {{ \"{}\": 1 }} }}
",
        origin.addr()
    )
}

/// The output of `weir check` for a route with these invalid plugins.
fn refused(plugins: &str) -> String {
    let place = TempDir::new();
    let text = format!("routes: [{{ uri: /*, upstream: {{ nodes: {{ '127.0.0.1:1': 1 }} }}, plugins: {plugins} }}]\n");
    let file = place.write("weir.yaml", &text);
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("check").arg(file).output().expect("it was built");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}
