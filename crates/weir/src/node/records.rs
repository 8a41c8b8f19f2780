//! The accounts of log records of plugins, for `/records` and `/metrics`.

use serde_json::{Value, json};
use weir_records::{AccountReading, RecordTally, SinkRegister};
use weir_telemetry::page::Page;

/// The content of `/records`.
pub(super) fn report() -> Value {
    json!({ "sinks": SinkRegister::of_process().read() })
}

/// Writes the series of `/metrics`. `delivered`, `rejected`, `dropped` and the pending ones add up to `accepted`.
pub(super) fn write(page: &mut Page) {
    let accounts = SinkRegister::of_process().read();
    page.counter("weir_log_records", "Log records of plugins, by sink, outcome and reason. `accepted` is the sum of all other outcomes and of the pending records.");
    settled(page, &accounts, |tally| tally.records);
    page.counter("weir_log_bytes", "Size of these log records, as copied by the workers, by sink, outcome and reason.");
    settled(page, &accounts, |tally| tally.bytes);
    page.gauge(
        "weir_log_pending_records",
        "Log records that are not delivered yet, by sink and by the place where they wait.",
    );
    pending(page, &accounts, |tally| tally.records);
    page.gauge(
        "weir_log_pending_bytes",
        "Size of the log records that are not delivered yet, by sink and by the place where they wait.",
    );
    pending(page, &accounts, |tally| tally.bytes);
    page.gauge("weir_log_sink_up", "Whether the last batch of a sink was delivered (1) or not (0); also 0 if records wait on disk for a logger that the configuration does not have.");
    for account in &accounts {
        page.value(&[("sink", &account.name)], u8::from(account.last_error.is_none()));
    }
}

fn settled(page: &mut Page, accounts: &[AccountReading], number: fn(&RecordTally) -> u64) {
    for account in accounts {
        let sink = &*account.name;
        page.total(&[("sink", sink), ("outcome", "accepted"), ("reason", "")], number(&account.accepted));
        page.total(&[("sink", sink), ("outcome", "delivered"), ("reason", "")], number(&account.delivered));
        for (outcome, reasons) in [("rejected", &account.rejected), ("dropped", &account.dropped)] {
            for (reason, tally) in reasons {
                page.total(&[("sink", sink), ("outcome", outcome), ("reason", reason)], number(tally));
            }
        }
    }
}

fn pending(page: &mut Page, accounts: &[AccountReading], number: fn(&RecordTally) -> u64) {
    for account in accounts {
        let places = [
            ("memory", &account.pending.memory),
            ("spool", &account.pending.spool),
            ("inflight", &account.pending.inflight),
        ];
        for (place, tally) in places {
            page.value(&[("sink", &account.name), ("where", place)], number(tally));
        }
    }
}
