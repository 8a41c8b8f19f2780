//! The conformance suite of the Gateway API, as its authors publish it, against a node on a real control plane.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use weir_testkit::{Gateway, Program, TempDir, skipped};

use crate::control_plane::ControlPlane;
use crate::edge::weir;

/// The network of the addresses that Gateways get, all of them local to the node.
const GATEWAYS: &str = "10.97.0.0/24";
/// One of them, for a Gateway that asks for it, and one that the node does not have.
const USABLE: &str = "10.97.0.250";
const UNUSABLE: &str = "10.98.0.1";
/// The file that gets the report of the suite.
const REPORT: &str = "WEIR_CONFORMANCE_REPORT";
/// Further options of the suite, such as `-run-test HTTPRouteWeight`.
const OPTIONS: &str = "WEIR_CONFORMANCE_OPTIONS";

/// A cluster with pods, and a node that serves its Gateways. They end with this value.
struct Bed {
    _node: Gateway,
    _data: TempDir,
    _controllers: Program,
    _agent: Program,
    plane: ControlPlane,
}

impl Bed {
    fn start() -> Option<Bed> {
        let plane = ControlPlane::start()?;
        plane.define_gateway_api();
        plane.grant_by_chart("gateway-api.yaml")?;
        plane.create(
            "/apis/gateway.networking.k8s.io/v1/gatewayclasses",
            &json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "GatewayClass",
                "metadata": { "name": "weir" },
                "spec": { "controllerName": "weir.dev/gateway-controller" },
            }),
        );
        let controllers = plane.start_controllers()?;
        let agent = plane.start_agent()?;
        let made_local =
            plane.beside(|| Command::new("ip").args(["route", "add", "local", GATEWAYS, "dev", "lo"]).status());
        assert!(made_local.is_ok_and(|status| status.success()), "the addresses of Gateways are local");
        let data = TempDir::new();
        let settings = format!("gateway_addresses: {GATEWAYS}, gateway_services: true");
        let file = format!("{}data_dir: {}\n", plane.node_with(&settings), data.path().display());
        let node = plane.beside(|| weir().start(&file));
        Some(Bed { plane, _agent: agent, _controllers: controllers, _data: data, _node: node })
    }
}

/// The suite as `scripts/kubernetes` builds it.
fn suite() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/kubernetes/bin/conformance.test");
    if !path.exists() {
        skipped("there is no conformance suite");
        return None;
    }
    Some(path)
}

#[test]
fn a_node_conforms_to_the_gateway_api() {
    let Some(suite) = suite() else { return };
    let Some(bed) = Bed::start() else { return };
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gateway-api-conformance.log");
    let mut command = Command::new(suite);
    command.env("KUBECONFIG", bed.plane.administration());
    command.args(["-test.v", "-test.timeout=60m", "-gateway-class=weir", "-cleanup-base-resources=false"]);
    command.arg("-conformance-profiles=GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP,GATEWAY-UDP");
    command.args(["-usable-address", USABLE, "-unusable-address", UNUSABLE]);
    // The project has no organization, page or contact, and the suite takes no empty values.
    command.args(["-organization=none", "-project=weir", "-contact=none", "-url=none"]);
    command.arg(concat!("-version=v", env!("CARGO_PKG_VERSION")));
    if let Some(file) = env::var_os(REPORT) {
        command.arg("-report-output").arg(file);
    }
    command.args(env::var(OPTIONS).unwrap_or_default().split_whitespace());
    let output = File::create(&log).and_then(|file| Ok((file.try_clone()?, file)));
    let (out, err) = output.expect("the folder is there");
    let status = bed.plane.beside(|| command.stdout(out).stderr(err).status()).expect("it can be run");
    let told = fs::read_to_string(&log).expect("it has been written");
    let results: Vec<&str> = told.lines().filter(|line| line.starts_with("    --- ")).collect();
    let count = |result: &str| results.iter().filter(|line| line.contains(result)).count();
    let (passed, failed, skipped) = (count("--- PASS"), count("--- FAIL"), count("--- SKIP"));
    println!(
        "tests of the suite: {passed} passed, {failed} failed, {skipped} skipped as their feature is not declared"
    );
    let failures: Vec<&str> = told.lines().filter(|line| line.trim_start().starts_with("--- FAIL")).collect();
    assert!(status.success(), "the suite ends with {status}; see {}\n{}", log.display(), failures.join("\n"));
    assert!(passed > 0, "no test has run; see {}", log.display());
}
