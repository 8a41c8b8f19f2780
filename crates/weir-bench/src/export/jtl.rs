use crate::{engine::LoadPhase, result::Cell};

const COLUMNS: [&str; 19] = [
    "timeStamp",
    "elapsed",
    "label",
    "responseCode",
    "responseMessage",
    "threadName",
    "dataType",
    "success",
    "failureMessage",
    "bytes",
    "sentBytes",
    "grpThreads",
    "allThreads",
    "URL",
    "SampleCount",
    "ErrorCount",
    "Latency",
    "IdleTime",
    "Connect",
];

/// JMeter's CSV. A result holds histograms, not single samples, so each interval is one line with JMeter's own columns
/// for statistical samples: the mean time, and how many samples and errors it represents.
pub(super) fn text(cell: &Cell) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS)?;
    for run in cell.runs() {
        let clients = run.plan.connections.to_string();
        let url = run.plan.requests.first().map_or(String::new(), |request| request.url.clone());
        for interval in run.load.intervals.iter().filter(|interval| interval.phase == LoadPhase::Measured) {
            let tally = &interval.tally;
            let status = tally.statuses.iter().max_by_key(|(_, count)| **count).map(|(status, _)| *status);
            let errors = tally.errors.sum() + tally.unexpected + tally.failed_checks;
            let elapsed = format!("{:.0}", tally.latency.mean() / 1e6);
            let end_ms = (run.load.started_unix_ns + interval.start_ns + interval.length_ns) / 1_000_000;
            let fields = [
                end_ms.to_string(),
                elapsed.clone(),
                cell.row.clone(),
                status.map_or(String::new(), |status| status.to_string()),
                String::new(),
                cell.target.clone(),
                "text".to_owned(),
                (errors == 0).to_string(),
                String::new(),
                tally.bytes_received.to_string(),
                tally.bytes_sent.to_string(),
                clients.clone(),
                clients.clone(),
                url.clone(),
                (tally.completed + tally.errors.sum()).to_string(),
                errors.to_string(),
                elapsed,
                "0".to_owned(),
                "0".to_owned(),
            ];
            writer.write_record(fields)?;
        }
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8(bytes).expect("all fields are texts"))
}
