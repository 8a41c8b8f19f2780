//! HTTP/3 by quic-go, which moves to other ports and proves each of them first.

use weir_testkit::scaled;

use crate::programs::{
    Http3Program, MIB, accepted, bodies, large_content_is_whole, objects_come_over_one_connection, origin,
};
use crate::with_workers;

#[test]
fn quic_go_gets_100_objects_over_one_connection() {
    objects_come_over_one_connection(Http3Program::QuicGo);
}

#[test]
fn quic_go_sends_and_receives_large_content() {
    large_content_is_whole(Http3Program::QuicGo, scaled(64 * MIB, 1024 * MIB));
}

#[test]
fn quic_go_moves_from_port_to_port() {
    let origin = origin();
    let served = with_workers(&origin, 2);
    let Some(said) = Http3Program::QuicGo.ask(&served, &["move", "20"]) else { return };
    assert_eq!(said["bodies"], bodies(21));
    let ports: std::collections::BTreeSet<_> =
        said["ports"].as_array().expect("a list").iter().map(|port| port.to_string()).collect();
    assert_eq!((ports.len(), accepted(&served)), (21, 1));
}
