//! Certificates in `/metrics`: those of the configuration, those obtained by ACME, and those of the SPIFFE Workload API.

use std::collections::BTreeMap;

use weir_control::acme::AcmeReport;
use weir_control::{CertificateEnd, SpiffeReport};
use weir_telemetry::page::Page;

/// The most certificates with series of their own: those that expire first.
const SERIES: usize = 1_000;

pub(super) fn write_ends(certificates: &[CertificateEnd], page: &mut Page) {
    page.gauge(
        "weir_certificate_expiry_timestamp_seconds",
        "Expiry of a certificate in `ssls`, in seconds since 1970, by its first name.",
    );
    for CertificateEnd { name, at } in certificates.iter().take(SERIES) {
        page.value(&[("certificate", name)], at);
    }
}

/// They have metrics of their own: an X.509-SVID is renewed within its last hour, which is an alarm for any other certificate.
pub(super) fn write_svids(report: &SpiffeReport, page: &mut Page) {
    page.gauge(
        "weir_spiffe_svid_expiry_timestamp_seconds",
        "Expiry of an X.509-SVID of the node, in seconds since 1970, by its SPIFFE ID.",
    );
    // Of several with one SPIFFE ID, the one that expires first.
    let mut ends: BTreeMap<&str, i64> = BTreeMap::new();
    for svid in &report.svids {
        ends.entry(&svid.spiffe_id).and_modify(|end| *end = svid.expires.min(*end)).or_insert(svid.expires);
    }
    for (id, end) in ends {
        page.value(&[("spiffe_id", id)], end);
    }
    page.gauge("weir_spiffe_up", "Whether the SPIFFE Workload API answers (1) or not (0).");
    page.value(&[], u8::from(report.connected));
    page.counter("weir_spiffe_updates", "Answers of the SPIFFE Workload API that had something new.");
    page.total(&[], report.updates);
}

pub(super) fn write(report: &AcmeReport, page: &mut Page) {
    page.gauge(
        "weir_acme_certificate_expiry_timestamp_seconds",
        "Expiry of the automatic certificate of a host, in seconds since 1970.",
    );
    for host in &report.hosts {
        if let Some(expires) = host.expires {
            page.value(&[("host", &host.host)], expires);
        }
    }
    page.gauge("weir_acme_failures", "Failed certificate orders in a row, by host.");
    for host in &report.hosts {
        page.value(&[("host", &host.host)], host.failures);
    }
    page.counter("weir_acme_orders", "Orders of automatic certificates, by outcome.");
    page.total(&[("outcome", "obtained")], report.orders_ok);
    page.total(&[("outcome", "failed")], report.orders_failed);
}
