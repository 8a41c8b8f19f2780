//! What careful readers found in published benchmarks, and whether the lint finds it too.

use std::{fs, path::Path};

use serde::Deserialize;
use weir_bench::lint::{Evidence, Scaling, Severity, judge, worst};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixture {
    expect: Vec<Expected>,
    evidence: Evidence,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    rule: String,
    severity: Severity,
    /// Part of the words.
    words: String,
}

fn fixture(name: &str) -> Fixture {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/findings").join(name);
    let text = fs::read_to_string(&path).unwrap();
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn expects(name: &str) {
    let fixture = fixture(name);
    let verdicts = judge(&fixture.evidence);
    for Expected { rule, severity, words } in &fixture.expect {
        let found = verdicts.iter().find(|verdict| verdict.rule == *rule);
        let found = found.unwrap_or_else(|| panic!("{name}: {rule} is not among {verdicts:#?}"));
        assert_eq!(found.severity, *severity, "{name}: {rule}");
        assert!(found.words.contains(words.as_str()), "{name}: \"{words}\" is not in \"{}\"", found.words);
    }
}

#[test]
fn finding_01_the_law_of_little_is_broken() {
    expects("01-littles-law.yaml");
}

#[test]
fn finding_02_a_burstable_machine_measured_once() {
    expects("02-burstable-machine.yaml");
}

#[test]
fn finding_03_latencies_below_the_resolution_of_the_tool() {
    expects("03-below-resolution.yaml");
}

#[test]
fn finding_04_it_contradicts_itself_and_leaves_out_what_is_needed_to_repeat_it() {
    expects("04-contradiction-and-unstated.yaml");
}

#[test]
fn finding_05_a_rate_that_cannot_be_reached_with_corrected_latency() {
    expects("05-unreachable-rate.yaml");
}

#[test]
fn finding_06_scaling_above_linear_without_a_cause() {
    expects("06-super-linear-scaling.yaml");
}

#[test]
fn finding_07_a_peer_without_upstream_keep_alive_and_with_a_file_that_does_not_load() {
    expects("07-handicapped-peer.yaml");
}

#[test]
fn finding_08_the_announced_count_was_not_sent() {
    expects("08-count-not-reached.yaml");
}

#[test]
fn finding_09_it_measured_its_backend_and_claims_more_than_it_shows() {
    expects("09-measured-its-backend.yaml");
}

#[test]
fn finding_10_closed_loops_and_averages() {
    expects("10-coordinated-omission.yaml");
}

#[test]
fn finding_11_what_nobody_measured() {
    expects("11-not-measured.yaml");
}

#[test]
fn a_clean_result_draws_nothing() {
    let verdicts = judge(&fixture("clean.yaml").evidence);
    assert_eq!(worst(&verdicts), None, "{verdicts:#?}");
}

/// Changes one thing about the clean closed-loop run and expects one finding.
fn spoiled(rule: &str, spoil: impl FnOnce(&mut weir_bench::lint::RowEvidence)) -> Severity {
    let mut evidence = fixture("clean.yaml").evidence;
    spoil(&mut evidence.rows[0]);
    let verdicts = judge(&evidence);
    assert_eq!(verdicts.len(), 1, "{verdicts:#?}");
    assert_eq!(verdicts[0].rule, rule);
    verdicts[0].severity
}

#[test]
fn each_way_to_spoil_a_run_is_named() {
    assert_eq!(spoiled("stolen-cpu", |row| row.steal_share = Some(0.03)), Severity::Warning);
    assert_eq!(spoiled("stolen-cpu", |row| row.steal_share = Some(0.10)), Severity::Invalid);
    assert_eq!(spoiled("ports-exhausted", |row| row.out_of_ports = Some(1)), Severity::Invalid);
    assert_eq!(spoiled("backlog-overflow", |row| row.listen_overflows = Some(1)), Severity::Warning);
    assert_eq!(spoiled("not-2xx", |row| row.not_2xx = Some(900_000)), Severity::Invalid);
    assert_eq!(spoiled("upstream-not-reused", |row| row.upstream_connects = Some(890_000)), Severity::Invalid);
    assert_eq!(spoiled("in-flight-count", |row| row.in_flight = Some(20.0)), Severity::Invalid);
    assert_eq!(spoiled("target-errors", |row| row.target_errors.push("upstream timed out".into())), Severity::Warning);
    let crowded = |row: &mut weir_bench::lint::RowEvidence| (row.workers, row.target_cpus) = (Some(2), Some(1));
    assert_eq!(spoiled("workers-share", crowded), Severity::Warning);
    assert_eq!(spoiled("stand-in", |row| row.stand_ins.push("limit-count is a bucket".into())), Severity::Note);
    assert_eq!(spoiled("records-lost", |row| row.records_lost = Some(0.001)), Severity::Warning);
    assert_eq!(spoiled("records-lost", |row| row.records_lost = Some(0.2)), Severity::Invalid);
    assert_eq!(spoiled("coordinated-omission", |row| row.corrected_p99_ms = Some(900.0)), Severity::Note);
    let warming = |row: &mut weir_bench::lint::RowEvidence| {
        row.slices_rps = (0..10).map(|slice| 20_000.0 + 1_000.0 * f64::from(slice)).collect();
    };
    assert_eq!(spoiled("warm-up-trend", warming), Severity::Warning);
    let generator = |row: &mut weir_bench::lint::RowEvidence| {
        (row.target_cpu, row.generator_cpu) = (Some(0.6), Some(0.58));
    };
    assert_eq!(spoiled("generator-saturated", generator), Severity::Invalid);
    let backend = |row: &mut weir_bench::lint::RowEvidence| {
        (row.target_cpu, row.backend_cpu) = (Some(0.6), Some(0.68));
    };
    assert_eq!(spoiled("backend-saturated", backend), Severity::Invalid);
}

#[test]
fn what_needs_rows_of_its_own_is_a_note_where_it_is_missing() {
    let mut evidence = fixture("clean.yaml").evidence;
    evidence.measured.truncate(5);
    let verdicts = judge(&evidence);
    assert_eq!((verdicts.len(), verdicts[0].severity), (1, Severity::Note), "{verdicts:#?}");
    let words = "not measured: cost per policy, behaviour during a configuration change, log loss, TLS handshakes/s";
    assert_eq!(verdicts[0].words, words);
    evidence.measured.remove(0);
    assert_eq!(judge(&evidence)[0].severity, Severity::Warning);
}

#[test]
fn each_thing_that_was_measured_at_several_sizes_is_judged_by_itself() {
    let mut evidence = fixture("clean.yaml").evidence;
    let size = |name: &str, cores, rps| Scaling { name: Some(name.to_owned()), cores, rps };
    evidence.scaling =
        vec![size("a", 1.0, 100.0), size("b", 1.0, 1_000.0), size("a", 2.0, 230.0), size("b", 2.0, 1_900.0)];
    let verdicts = judge(&evidence);
    assert_eq!((verdicts.len(), verdicts[0].rule.as_str()), (1, "super-linear-scaling"), "{verdicts:#?}");
    assert_eq!(verdicts[0].subject.as_deref(), Some("a"));
}

#[test]
fn an_open_loop_that_was_late_is_not_a_measurement() {
    let mut evidence = fixture("clean.yaml").evidence;
    evidence.rows[1].on_time_share = Some(0.9);
    evidence.rows[1].missed = Some(12);
    let verdicts = judge(&evidence);
    assert_eq!((verdicts.len(), verdicts[0].rule.as_str()), (1, "generator-late"));
    assert_eq!(verdicts[0].severity, Severity::Invalid);
    assert!(verdicts[0].words.contains("12 never left"), "{}", verdicts[0].words);
}

#[test]
fn what_a_minority_of_the_runs_met_does_not_weaken_their_median() {
    let stolen = |shares: [f64; 5]| {
        let mut evidence = fixture("clean.yaml").evidence;
        let run = evidence.rows[0].clone();
        evidence.rows.truncate(1);
        evidence.rows.extend(vec![run; 4]);
        for (row, share) in evidence.rows.iter_mut().zip(shares) {
            row.steal_share = Some(share);
        }
        worst(&judge(&evidence))
    };
    assert_eq!(stolen([0.02, 0.0, 0.03, 0.0, 0.0]), None);
    assert_eq!(stolen([0.02, 0.0, 0.03, 0.0, 0.02]), Some(Severity::Warning));
    assert_eq!(stolen([0.10, 0.0, 0.0, 0.0, 0.0]), Some(Severity::Invalid));
}
