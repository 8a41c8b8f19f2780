//! Certificates in `/metrics`: those of the configuration, and those obtained by ACME.

use weir_control::CertificateEnd;
use weir_control::acme::AcmeReport;
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
