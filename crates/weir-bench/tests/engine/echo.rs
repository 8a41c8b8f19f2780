//! Bytes over TCP and TLS, and datagrams, without HTTP.

use std::net::UdpSocket;

use weir_bench::backend::{BackendCarries, BackendServer, Config, TlsFiles};
use weir_bench::engine::{Errors, LoadPlan, LoadResult, Pacing, Protocol, Rate, Spacing, StopCondition, run};

fn backend(carries: BackendCarries, tls: bool) -> BackendServer {
    let tls = tls.then_some(TlsFiles::SelfSigned);
    BackendServer::start(&Config { carries, tls, ..Config::default() }).expect("a free port")
}

fn load(url: &str, protocol: Protocol, change: impl FnOnce(&mut LoadPlan)) -> LoadResult {
    let mut plan = LoadPlan { protocol, ..LoadPlan::closed(url, 5, StopCondition::after_count(203)) };
    change(&mut plan);
    let result = run(&plan, &mut |_| {}).expect("the plan is good");
    let total = &result.total;
    assert_eq!(total.due, total.completed + total.errors.sum() + total.missed, "every message has one outcome");
    result
}

#[test]
fn bytes_over_tcp_and_tls_come_back() {
    for (tls, scheme) in [(false, "tcp"), (true, "tls")] {
        let backend = backend(BackendCarries::Tcp, tls);
        let url = format!("{scheme}://{}", backend.addresses()[0]);
        for pacing in [Pacing::default(), Pacing::Open { rate: Rate::Constant(2_000.0), spacing: Spacing::Even }] {
            let result = load(&url, Protocol::Tcp { message_bytes: 64 }, |plan| plan.pacing = pacing);
            assert_eq!((result.total.completed, result.total.errors), (203, Errors::default()));
            assert_eq!((result.connections.opened, result.connections.open_at_end), (5, 5));
            assert_eq!(result.total.bytes_received, 203 * 64);
        }
    }
}

#[test]
fn a_message_larger_than_all_buffers_on_its_way_comes_back() {
    let backend = backend(BackendCarries::Tcp, false);
    let url = format!("tcp://{}", backend.addresses()[0]);
    let result = load(&url, Protocol::Tcp { message_bytes: 32 << 20 }, |plan| {
        (plan.connections, plan.stop) = (2, StopCondition::after_count(4));
    });
    assert_eq!((result.total.completed, result.total.bytes_received), (4, 128 << 20));
}

#[test]
fn each_message_has_a_connection_if_none_is_kept() {
    let backend = backend(BackendCarries::Tcp, false);
    let url = format!("tcp://{}", backend.addresses()[0]);
    let result = load(&url, Protocol::Tcp { message_bytes: 64 }, |plan| plan.keep_alive = false);
    assert_eq!((result.total.completed, result.connections.opened), (203, 203));
    assert_eq!(result.connections.open_at_end, 0);
}

#[test]
fn datagrams_come_back() {
    let backend = backend(BackendCarries::Udp, false);
    let url = format!("udp://{}", backend.addresses()[0]);
    for keep_alive in [true, false] {
        let result = load(&url, Protocol::Udp { message_bytes: 1_400 }, |plan| plan.keep_alive = keep_alive);
        assert_eq!((result.total.completed, result.total.errors), (203, Errors::default()));
        assert_eq!(result.connections.opened, if keep_alive { 5 } else { 203 });
    }
}

#[test]
fn a_lost_datagram_is_an_error_and_not_a_hang() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let url = format!("udp://{}", silent.local_addr().expect("it is bound"));
    let result = load(&url, Protocol::Udp { message_bytes: 64 }, |plan| {
        plan.stop = StopCondition::after_count(5);
        plan.timeouts.response_ms = 50;
    });
    assert_eq!((result.total.completed, result.total.errors.timeout), (0, 5));
}
