//! What careful readers found in published benchmarks, and whether the lint finds it too.

use std::{fs, path::Path};

use weir_bench::analysis::lint::{
    self, Evidence, ScalingEvidence,
    Severity::{self, Invalid, Warning},
    judge, worst,
};

/// What a publication says, as `weir bench judge` reads it.
fn publication(name: &str) -> Evidence {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/publications").join(name);
    lint::read(name, &fs::read_to_string(path).unwrap()).unwrap()
}

/// Each rule with its severity and part of the words.
fn expects(name: &str, expected: &[(&str, Severity, &str)]) {
    let verdicts = judge(&publication(name));
    for (rule, severity, words) in expected {
        let found = verdicts.iter().find(|verdict| verdict.rule == *rule);
        let found = found.unwrap_or_else(|| panic!("{name}: {rule} is not among {verdicts:#?}"));
        assert_eq!(found.severity, *severity, "{name}: {rule}");
        assert!(found.words.contains(words), "{name}: \"{words}\" is not in \"{}\"", found.words);
    }
}

#[test]
fn finding_01_the_law_of_little_is_broken() {
    expects("01-littles-law.yaml", &[("littles-law", Invalid, "53.9 requests in flight")]);
}

#[test]
fn finding_02_a_burstable_machine_measured_once() {
    expects(
        "02-burstable-machine.yaml",
        &[("burstable-machine", Warning, "e2-medium"), ("too-few-repeats", Warning, "measured once")],
    );
}

#[test]
fn finding_03_latencies_below_the_resolution_of_the_tool() {
    expects("03-below-resolution.yaml", &[("below-resolution", Invalid, "wrk2 is accurate to 1 ms")]);
}

#[test]
fn finding_04_it_contradicts_itself_and_leaves_out_what_is_needed_to_repeat_it() {
    expects(
        "04-contradiction-and-unstated.yaml",
        &[
            ("contradictory-topology", Warning, "one machine"),
            ("no-spread", Warning, "no deviation"),
            ("unstated-parameters", Warning, "connections, the rate or the kind of loop, the CPU model"),
        ],
    );
}

#[test]
fn finding_05_a_rate_that_cannot_be_reached_with_corrected_latency() {
    expects(
        "05-unreachable-rate.yaml",
        &[
            ("unreachable-rate", Invalid, "the backlog grows during the whole run"),
            ("impossible-count", Invalid, "663000000 requests/s were counted"),
        ],
    );
}

#[test]
fn finding_06_scaling_above_linear_without_a_cause() {
    expects(
        "06-super-linear-scaling.yaml",
        &[("super-linear-scaling", Warning, "the throughput per core is 1.39 times")],
    );
}

#[test]
fn finding_07_a_peer_without_upstream_keep_alive_and_with_a_file_that_does_not_load() {
    expects(
        "07-handicapped-peer.yaml",
        &[
            ("upstream-not-reused", Invalid, "without upstream keep-alive"),
            ("configuration-not-loaded", Invalid, "keepalive_requests"),
        ],
    );
}

#[test]
fn finding_08_the_announced_count_was_not_sent() {
    expects("08-count-not-reached.yaml", &[("count-not-reached", Warning, "needs 12500 requests/s")]);
}

#[test]
fn finding_09_it_measured_its_backend_and_claims_more_than_it_shows() {
    expects(
        "09-measured-its-backend.yaml",
        &[
            ("backend-saturated", Invalid, "as the publication says itself"),
            ("claim-beyond-table", Invalid, "the claim is 1000 connections, the table ends at 600"),
            ("errors-without-failed-connections", Warning, "57.60 %"),
            ("errors", Invalid, "57.600 %"),
        ],
    );
}

#[test]
fn finding_10_closed_loops_and_averages() {
    expects(
        "10-coordinated-omission.yaml",
        &[
            ("coordinated-omission", Warning, "leave out the effect of a stall"),
            ("averages-only", Warning, "an average only"),
        ],
    );
}

#[test]
fn finding_11_what_nobody_measured() {
    expects(
        "11-not-measured.yaml",
        &[(
            "not-measured",
            Warning,
            "p99.9, cpu per request, memory after load, errors by cause, generator saturation, cost per policy, behaviour during a configuration change, log loss, TLS handshakes/s",
        )],
    );
}

#[test]
fn a_clean_result_draws_nothing() {
    let verdicts = judge(&publication("clean.yaml"));
    assert_eq!(worst(&verdicts), None, "{verdicts:#?}");
}

/// Changes one thing about the clean closed-loop run and expects one finding.
fn spoiled(rule: &str, spoil: impl FnOnce(&mut weir_bench::analysis::lint::RowEvidence)) -> Severity {
    let mut evidence = publication("clean.yaml");
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
    assert_eq!(spoiled("not-all-open", |row| row.open_at_start = Some(1)), Severity::Invalid);
    assert_eq!(spoiled("not-2xx", |row| row.not_2xx = Some(900_000)), Severity::Invalid);
    assert_eq!(spoiled("upstream-not-reused", |row| row.upstream_connects = Some(890_000)), Severity::Invalid);
    assert_eq!(spoiled("in-flight-count", |row| row.in_flight = Some(20.0)), Severity::Invalid);
    assert_eq!(spoiled("target-errors", |row| row.target_errors.push("upstream timed out".into())), Severity::Warning);
    assert_eq!(spoiled("processes-ended", |row| row.processes_ended = 1), Severity::Warning);
    assert_eq!(spoiled("oom-kills", |row| row.oom_kills = 1), Severity::Warning);
    let crowded =
        |row: &mut weir_bench::analysis::lint::RowEvidence| (row.workers, row.target_cpus) = (Some(2), Some(1));
    assert_eq!(spoiled("workers-share", crowded), Severity::Warning);
    assert_eq!(spoiled("stand-in", |row| row.stand_ins.push("limit-count is a bucket".into())), Severity::Note);
    assert_eq!(spoiled("records-lost", |row| row.records_lost = Some(0.001)), Severity::Warning);
    assert_eq!(spoiled("records-lost", |row| row.records_lost = Some(0.2)), Severity::Invalid);
    assert_eq!(spoiled("coordinated-omission", |row| row.corrected_p99_ms = Some(900.0)), Severity::Note);
    assert_eq!(spoiled("run-too-short", |row| row.duration_s = Some(0.02)), Severity::Warning);
    assert_eq!(spoiled("run-too-short", |row| row.turns = Some(1_500)), Severity::Warning);
    assert_eq!(spoiled("edges-count", |row| row.edges_move = Some(-0.04)), Severity::Warning);
    let warming = |row: &mut weir_bench::analysis::lint::RowEvidence| {
        row.slices_rps = (0..10).map(|slice| 20_000.0 + 1_000.0 * f64::from(slice)).collect();
    };
    assert_eq!(spoiled("warm-up-trend", warming), Severity::Warning);
    let generator = |row: &mut weir_bench::analysis::lint::RowEvidence| {
        (row.target_cpu, row.generator_cpu) = (Some(0.6), Some(0.58));
    };
    assert_eq!(spoiled("generator-saturated", generator), Severity::Invalid);
    let backend = |row: &mut weir_bench::analysis::lint::RowEvidence| {
        (row.target_cpu, row.backend_cpu) = (Some(0.6), Some(0.68));
    };
    assert_eq!(spoiled("backend-saturated", backend), Severity::Invalid);
}

#[test]
fn missing_connections_are_reported_with_whose_limit_it_was() {
    let says = |spoil: &dyn Fn(&mut weir_bench::analysis::lint::RowEvidence)| {
        let mut evidence = publication("clean.yaml");
        let row = &mut evidence.rows[0];
        (row.connections, row.held, row.error_share) = (Some(30_000), Some(19_255), Some(0.3));
        (row.target_files, row.target_files_limit) = (Some(19_281), Some(20_000));
        spoil(row);
        let verdicts = judge(&evidence);
        assert!(verdicts.iter().all(|verdict| verdict.rule != "errors"), "{verdicts:#?}");
        let found = verdicts.into_iter().find(|verdict| verdict.rule == "not-all-held").unwrap();
        (found.severity, found.words)
    };
    let (severity, words) = says(&|_| {});
    let expected = "19255 of 30000 connections were held: the target had 19281 open files, and the limit for one of its \
                    processes is 20000";
    assert_eq!((severity, words.as_str()), (Severity::Warning, expected));
    let (severity, words) = says(&|row| (row.target_files, row.closed_idle) = (Some(9_509), Some(3)));
    assert!(severity == Severity::Warning && words.contains("an internal limit, with 9509 open files"), "{words}");
    assert!(words.ends_with("; it closed 3 idle connections to accept others"), "{words}");
    let (severity, words) = says(&|row| (row.target_files, row.target_files_grew) = (Some(9_509), true));
    assert!(severity == Severity::Invalid && words.contains("measure for longer"), "{words}");
    let (severity, words) = says(&|row| row.out_of_ports = Some(12));
    assert!(severity == Severity::Invalid && words.contains("increase load.processes"), "{words}");
}

#[test]
fn only_requests_that_wait_for_an_overloaded_backend_are_no_errors_of_the_row() {
    let severity = |backend_limits, unanswered| {
        let mut evidence = publication("clean.yaml");
        let row = &mut evidence.rows[0];
        (row.error_share, row.unanswered_share) = (Some(0.3), Some(unanswered));
        (row.backend_limits, row.failed_connections) = (backend_limits, Some(0));
        let verdicts = judge(&evidence);
        let hides = verdicts.iter().any(|verdict| verdict.rule == "errors-without-failed-connections");
        (verdicts.iter().find(|verdict| verdict.rule == "errors").map(|verdict| verdict.severity), hides)
    };
    assert_eq!(severity(true, 0.3), (Some(Severity::Note), false));
    assert_eq!(severity(false, 0.3), (Some(Severity::Invalid), true));
    assert_eq!(severity(true, 0.28), (Some(Severity::Invalid), true), "some were answered with an error");
}

#[test]
fn missing_measurements_are_a_note() {
    let mut evidence = publication("clean.yaml");
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
    let mut evidence = publication("clean.yaml");
    let size = |name: &str, cores, rps| ScalingEvidence { name: Some(name.to_owned()), cores, rps };
    evidence.scaling =
        vec![size("a", 1.0, 100.0), size("b", 1.0, 1_000.0), size("a", 2.0, 230.0), size("b", 2.0, 1_900.0)];
    let verdicts = judge(&evidence);
    assert_eq!((verdicts.len(), verdicts[0].rule.as_str()), (1, "super-linear-scaling"), "{verdicts:#?}");
    assert_eq!(verdicts[0].subject.as_deref(), Some("a"));
}

#[test]
fn an_open_loop_that_was_late_is_not_a_measurement() {
    let mut evidence = publication("clean.yaml");
    evidence.rows[1].on_time_share = Some(0.9);
    evidence.rows[1].missed = Some(12);
    let verdicts = judge(&evidence);
    assert_eq!((verdicts.len(), verdicts[0].rule.as_str()), (1, "generator-late"));
    assert_eq!(verdicts[0].severity, Severity::Invalid);
    assert!(verdicts[0].words.contains("12 were never sent"), "{}", verdicts[0].words);
}

#[test]
fn u17_a_run_without_an_answer_is_no_measurement() {
    for (sent, words) in
        [(0, "nothing was sent in the measured part"), (7, "7 requests were sent and none was answered")]
    {
        let mut evidence = publication("clean.yaml");
        (evidence.rows[1].sent, evidence.rows[1].completed) = (Some(sent), Some(0));
        let verdicts = judge(&evidence);
        let found = verdicts.iter().find(|verdict| verdict.words.contains(words));
        assert_eq!(found.map(|found| found.severity), Some(Severity::Invalid), "{verdicts:#?}");
    }
}

#[test]
fn disturbance_of_a_minority_of_runs_does_not_weaken_the_median() {
    let stolen = |shares: [f64; 5]| {
        let mut evidence = publication("clean.yaml");
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

#[test]
fn a_publication_that_cannot_be_read_says_where() {
    let error = lint::read("theirs.yaml", "title: A\nrows: [ { name: GET, rsp: 5 } ]\n").unwrap_err().to_string();
    assert!(error.starts_with("theirs.yaml: ") && error.contains("rsp"), "{error}");
    let json = r#"{"repeats": 1, "rows": [{"name": "GET", "pacing": "closed", "connections": 4}]}"#;
    assert_eq!(lint::read("theirs.json", json).unwrap().rows[0].connections, Some(4));
    assert!(lint::read("nothing.yaml", "").unwrap_err().to_string().contains("is empty"));
}
