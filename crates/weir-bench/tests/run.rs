//! Tests the lab as a whole: a scenario as input, files as output. The target is the lab's own backend, so nothing has to be
//! installed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, PoisonError},
};

use weir_bench::{
    analysis::lint,
    result::{Cell, CellOutcome, ResultFile, RouteChanges, StackProfile},
    scenario,
    trials::TrialsFile,
};
use weir_testkit::skipped;

const SCENARIO: &str = "
name: smoke
title: Smoke
about: Requests to the backend itself.
targets: [none]
baseline: none
connections: [2, 4]
columns: [mean]
method: { warmup_s: 0.1, measured_s: 1, repeats: 2 }
rows:
  - name: GET
    published: [ { system: AnotherGateway, connections: 4, rps: 1234 } ]
  - name: key-auth
    consumers: 1
    policies: { key-auth: {} }
    compare_with: GET
";

/// Runs use the same processors, so only one runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("weir-bench-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("smoke.yaml"), SCENARIO).unwrap();
        Place(path)
    }

    fn lab(&self, arguments: &[&str]) -> Output {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-bench"));
        command.args(arguments).current_dir(&self.0).output().unwrap()
    }

    /// Files in the output directory with this ending.
    fn results(&self, ending: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.join("out")).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.to_string_lossy().ends_with(ending)).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_scenario_becomes_a_result_a_report_and_exports() {
    let place = Place::new("run");
    let output = place.lab(&["run", "smoke.yaml", "--out", "out", "--cache", "cache"]);
    let printed = text(&output);
    assert!(output.status.code().is_some_and(|code| code < 2), "{printed}");
    assert_eq!(
        printed.matches("none does not support key-auth (\"key-auth\")").count(),
        1,
        "once, below the table: {printed}"
    );
    assert!(printed.contains("AnotherGateway") && printed.contains("1.23k") && printed.contains(" mean "), "{printed}");
    let file = place.results(".json").pop().unwrap();
    let result = ResultFile::read(&file).unwrap();
    assert_eq!(result.cells.len(), 4);
    for cell in result.cells.iter().filter(|cell| cell.row == "GET") {
        let CellOutcome::Measured { runs } = &cell.outcome else { panic!("{:?}", cell.outcome) };
        assert_eq!(runs.len(), 2);
        for run in runs {
            assert!(run.load.total.class(2) > 0, "{:?}", run.load.total.statuses);
            assert_eq!(run.load.total.errors.sum(), 0);
            assert!(!run.processes.is_empty() && run.host.len() > 1);
        }
    }
    judged_by_what_it_holds(&result);
    assert_eq!(result.knees.len(), 0, "two levels have no knee");
    assert!(!printed.contains("knee of"), "{printed}");
    let page = fs::read_to_string(file.with_extension("html")).unwrap();
    assert!(page.contains("<svg") && page.contains("AnotherGateway") && !page.contains("NaN"));
    assert!(!page.contains("<script") && !page.contains("src="), "the page stands alone");

    let report = place.lab(&["report", "--svg", name(&file)]);
    assert!(text(&report).contains("report"), "{}", text(&report));
    let figures = fs::read_dir(file.with_extension("figures")).unwrap().count();
    assert!(figures >= 3, "{figures}");

    let ambiguous = place.lab(&["export", name(&file), "--format", "hgrm"]);
    assert_eq!(ambiguous.status.code(), Some(2));
    assert!(text(&ambiguous).contains("choose one with --row"), "{}", text(&ambiguous));
    for format in ["wrk2", "hgrm", "hlog", "k6", "jtl", "openmetrics"] {
        let exported = place.lab(&["export", name(&file), "--format", format, "--connections", "4"]);
        assert!(exported.status.success() && exported.stdout.len() > 100, "{format}: {}", text(&exported));
    }
    let compared = place.lab(&["compare", name(&file), name(&file)]);
    assert!(text(&compared).contains("≈"), "{}", text(&compared));
    assert_eq!(compared.status.code(), Some(0), "a result does not differ from itself: {}", text(&compared));
    older_results_are_marked(&place, result.clone());
    told_without_a_flame_graph(&place, result);
}

/// Pages say how often the program has changed since, and which rows of the lab's own scenario a result is older than.
fn older_results_are_marked(place: &Place, mut result: ResultFile) {
    let mut scenario = scenario::read("compare").unwrap();
    scenario.rows.retain(|row| row.name != "GET 1 MiB");
    result.scenario = scenario;
    result.cells.retain(|cell| cell.row == "GET");
    result.started_at = "2026-11-01T00:00:00Z".to_owned();
    let file = place.0.join("out/older.json");
    result.write(&file).unwrap();
    let changes: String = (0..60).map(|number| format!("2026-11-02T00:{number:02}:00Z\n")).collect();
    fs::write(place.0.join("changes"), changes).unwrap();
    let pages = |arguments: &[&str]| {
        let output = place.lab(&[&["page", name(&file), "--folder", "pages"][..], arguments].concat());
        assert!(output.status.success(), "{}", text(&output));
        ["compare.md", "README.md"].map(|page| fs::read_to_string(place.0.join("pages").join(page)).unwrap())
    };
    let [page, index] = pages(&["--changes", "changes"]);
    assert!(page.contains("\n> Older build: what every request passes through has changed at least 50 times since.\n"));
    assert!(page.contains("\n> This result is older than these rows of the scenario: GET 1 MiB.\n"), "{page}");
    assert!(index.contains("\n> Older builds") && index.contains(": [compare](compare.md) 50.\n"), "{index}");
    let [page, index] = pages(&[]);
    assert!(!page.contains("Older build") && !index.contains("Older build"), "{index}");
    fs::write(place.0.join("changes"), "yesterday\n").unwrap();
    let wrong = place.lab(&["page", name(&file), "--folder", "pages", "--changes", "changes"]);
    assert!(text(&wrong).contains("each line is a time"), "{}", text(&wrong));
}

/// The terminal and the report say why there is no flame graph, once for all figures with the same reason.
fn told_without_a_flame_graph(place: &Place, mut result: ResultFile) {
    let reason = "perf took no sample <of it>";
    let missing = |cell: &Cell| StackProfile {
        row: cell.row.clone(),
        target: cell.target.clone(),
        level: cell.level,
        repeat: 0,
        rps: 1_000.0,
        stacks: BTreeMap::new(),
        missing: Some(reason.to_owned()),
    };
    result.profiles = result.cells.iter().filter(|cell| cell.row == "GET").map(missing).collect();
    result.profiles.push(StackProfile {
        row: "sampled".to_owned(),
        stacks: [("none;serve".to_owned(), 5)].into(),
        missing: None,
        ..result.profiles[0].clone()
    });
    let file = place.0.join("out/profiles.json");
    result.write(&file).unwrap();
    assert_eq!(ResultFile::read(&file).unwrap().profiles.len(), 3);
    let printed = text(&place.lab(&["report", name(&file)]));
    let line = format!("no flame graph of none · GET · 2 and 1 more figures: {reason}");
    assert_eq!(printed.matches(&line).count(), 1, "{printed}");
    let page = fs::read_to_string(file.with_extension("html")).unwrap();
    assert_eq!(page.matches("perf took no sample &lt;of it&gt;").count(), 1);
    assert!(
        page.contains("none · sampled · 2 clients") && !page.contains("none · GET · 2 clients · repeat"),
        "one graph"
    );
}

/// The findings about measurements and scaling follow from the contents of the result.
fn judged_by_what_it_holds(result: &ResultFile) {
    let measured = lint::evidence_of(result).measured;
    assert!(measured.iter().any(|name| name == "errors by cause"), "{measured:?}");
    let change = "behaviour during a configuration change";
    for name in ["cost per policy", change, "log loss", "TLS handshakes/s"] {
        assert!(!measured.iter().any(|have| have == name), "{name} is in {measured:?}");
    }
    let mut changed = result.clone();
    for cell in &mut changed.cells {
        if let CellOutcome::Measured { runs } = &mut cell.outcome {
            runs[0].route_changes = Some(RouteChanges { visible_after_ms: vec![1.0; 101], ..RouteChanges::default() });
        }
    }
    assert!(lint::evidence_of(&changed).measured.iter().any(|name| name == change));
    let rules = |result: &ResultFile| -> Vec<String> {
        lint::judge(&lint::evidence_of(result)).into_iter().map(|verdict| verdict.rule).collect()
    };
    assert!(!rules(result).contains(&"super-linear-scaling".to_owned()));
    // Two workers with three times the throughput of one.
    let mut scaled = result.clone();
    scaled.cells.retain(|cell| cell.row == "GET" && cell.level.connections == 2);
    scaled.cells[0].target = "weir".to_owned();
    let mut two = scaled.cells[0].clone();
    two.level.workers = 2;
    if let CellOutcome::Measured { runs } = &mut two.outcome {
        for run in runs {
            run.load.completed_in_time = run.load.completed_in_time.map(|completed| completed * 3);
        }
    }
    scaled.cells.push(two);
    assert!(rules(&scaled).contains(&"super-linear-scaling".to_owned()), "{:?}", rules(&scaled));
}

/// The counts need valgrind, which is not in an empty search path: the lab fails after the repeats.
#[test]
fn result_of_a_failed_run_is_written_with_the_reason() {
    let place = Place::new("incomplete");
    let arguments = ["run", "smoke.yaml", "--out", "out", "--cache", "cache", "--row", "GET", "--valgrind"];
    let run = {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir-bench"));
        command.args(arguments).env("PATH", "").current_dir(&place.0).output().unwrap()
    };
    let printed = text(&run);
    assert_eq!(run.status.code(), Some(1), "{printed}");
    assert!(printed.contains("the run ended before everything was measured: --valgrind: valgrind is not"), "{printed}");
    let result = ResultFile::read(&place.results(".json").pop().unwrap()).unwrap();
    assert!(result.incomplete.is_some_and(|reason| reason.contains("valgrind is not installed")));
    assert_eq!(result.cells.iter().map(|cell| cell.runs().len()).sum::<usize>(), 4);
}

#[test]
fn a_run_without_figures_is_invalid_and_wrong_options_are_refused() {
    let place = Place::new("nothing");
    let lab = |more: &[&str]| place.lab(&[&["run", "smoke.yaml", "--out", "out", "--cache", "cache"], more].concat());
    let nothing = lab(&["--targets", "haproxy", "--program", "haproxy=/nowhere/haproxy"]);
    assert_eq!(nothing.status.code(), Some(1), "{}", text(&nothing));
    assert!(text(&nothing).contains("nothing was measured"), "{}", text(&nothing));
    for (option, problem) in [
        ("--seconds=-1", "method.measured_s: -1 is not more than 0"),
        ("--seconds=nan", "method.measured_s: NaN is not"),
        ("--seconds=inf", "method.measured_s: inf is not"),
        ("--seconds=1e300", "is not more than 0 and at most 86400"),
        ("--workers=0", "workers: 1 or more"),
        ("--connections=100,50", "connections: ascending numbers from 1"),
        ("--repeats=0", "method.repeats: 0 is possible only with --valgrind"),
    ] {
        let refused = lab(&[option]);
        assert!(text(&refused).contains(problem), "{option}: {}", text(&refused));
        assert_eq!(refused.status.code(), Some(2), "{option}: {}", text(&refused));
    }
}

/// Two trials of a scenario whose targets are the backend itself: under another name, and with a slower path.
#[test]
fn trials_of_a_scenario_are_counted_in_one_file() {
    let place = Place::new("trials");
    let scenario = "{name: twice, title: T, about: A, targets: [one, same, slowed], baseline: one, connections: [2], rows: [{name: r}],
        variants: {one: {peer: none}, same: {peer: none}, slowed: {peer: none, path: /delay/20ms}},
        method: {warmup_s: 0.1, measured_s: 0.5, repeats: 2, confidence: 0.99}}";
    fs::write(place.0.join("twice.yaml"), scenario).unwrap();
    let output =
        place.lab(&["trials", "twice.yaml", "--count", "2", "--seed", "7", "--out", "out", "--cache", "cache"]);
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("2 repeats cannot show any difference at 99 %"), "{printed}");
    assert!(printed.contains("trial 2 of 2: "), "{printed}");
    let files = place.results(".json");
    assert_eq!(files.len(), 1, "one file for all trials: {files:?}");
    assert!(name(&files[0]).contains("twice-trials-"), "{files:?}");
    let trials: TrialsFile = serde_json::from_str(&fs::read_to_string(&files[0]).unwrap()).unwrap();
    assert_eq!((trials.planned, trials.incomplete.as_deref()), (2, None));
    assert_eq!(trials.trials.iter().map(|trial| trial.seed).collect::<Vec<_>>(), [7, 1_007]);
    let summaries = trials.summaries();
    assert_eq!(summaries.iter().map(|summary| summary.target).collect::<Vec<_>>(), ["same", "slowed"]);
    let slowed = summaries[1].ratio().expect("it was compared").high;
    assert!(slowed < 1.0, "a request of 20 ms and more beside one without a delay: {slowed}");
    for summary in summaries {
        let line = summary.line(0.99);
        // Two repeats cannot show a difference at this confidence.
        assert_eq!((summary.different_of_all, summary.is_equal), (0, summary.target == "same"), "{line:?}");
        assert!(printed.contains("0 of 2") && printed.contains(&line[6]), "{line:?} is not in {printed}");
    }
    let refused = place.lab(&["trials", "twice.yaml", "--count", "2", "--valgrind"]);
    assert!(text(&refused).contains("cannot be used with"), "{}", text(&refused));
}

#[test]
fn a_result_is_repeated_by_replay() {
    let place = Place::new("replay");
    place.lab(&["run", "smoke.yaml", "--out", "out", "--cache", "cache", "--row", "GET"]);
    let file = place.results(".json").pop().unwrap();
    let replayed = place.lab(&["replay", name(&file), "--out", "again", "--cache", "cache"]);
    let printed = text(&replayed);
    assert!(printed.contains("Mann and Whitney"), "{printed}");
}

/// Installed backends are kept between runs of the tests.
const KEPT: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/bench");

/// Installs a backend as a user would; prints the reason if that is not possible.
fn installed(place: &Place, name: &str) -> bool {
    let output = place.lab(&["list", "--cache", KEPT]);
    let printed = text(&output);
    let missing = printed.lines().any(|line| line.contains(&format!("{name} is not installed")));
    let output = if missing { place.lab(&["install", name, "--cache", KEPT]) } else { output };
    if !output.status.success() {
        let last = text(&output).lines().last().unwrap_or_default().to_owned();
        skipped(&last);
    }
    output.status.success()
}

/// Runs a row on a backend; returns the result.
fn answered(name: &str, row: &str) -> ResultFile {
    let place = Place::new(name);
    let scenario = format!(
        "{{name: before, title: A, about: b, targets: [none], baseline: none, connections: [2], \
         backend: {{kind: {name}, instances: 2, body_bytes: 1024}}, \
         method: {{warmup_s: 0, measured_s: 3, repeats: 1}}, rows: [{{name: asked, {row}}}]}}"
    );
    fs::write(place.0.join("before.yaml"), scenario).unwrap();
    let output = place.lab(&["run", "before.yaml", "--out", "out", "--cache", KEPT]);
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", text(&output));
    ResultFile::read(&place.results(".json").pop().unwrap()).unwrap()
}

#[test]
fn netty_answers_with_a_kilobyte() {
    if !installed(&Place::new("netty-there"), "netty") {
        return;
    }
    let result = answered("netty", "request: {method: POST, body_bytes: 5000}");
    let load = &result.cells[0].runs()[0].load;
    assert!(load.total.class(2) > 0 && load.total.errors.sum() == 0, "{:?}", load.total.errors);
    assert!(load.total.bytes_received > 1024 * load.total.completed);
    let backend = &result.backends[0];
    assert!(backend.version.as_ref().is_some_and(|version| version.starts_with("netty-")), "{backend:?}");
    assert_eq!(backend.configurations[0].command[0], "java");
    assert!(!format!("{backend:?}").contains(KEPT), "{backend:?}");
}

/// The result of a built-in scenario with these targets, in one short run with few clients.
fn tiny(scenario: &str, targets: &str) -> ResultFile {
    let place = Place::new(&format!("{scenario}-{targets}"));
    let few = ["--targets", targets, "--connections", "3", "--seconds", "3", "--repeats", "1", "--quick"];
    let output = place.lab(&[&["run", scenario, "--out", "out", "--cache", KEPT], &few[..]].concat());
    let file = place.results(".json").pop().unwrap_or_else(|| panic!("{}", text(&output)));
    ResultFile::read(&file).unwrap()
}

#[test]
fn every_scenario_of_streams_runs() {
    for scenario in ["sse-fanout", "websocket", "wso2-streaming"] {
        let result = tiny(scenario, "none");
        let rows = result.cells.iter().filter(|cell| !cell.row.starts_with("WebSub"));
        for cell in rows {
            let [run] = cell.runs() else { panic!("{scenario}, {}: {:?}", cell.row, cell.outcome) };
            assert!(run.load.total.completed > 0, "{scenario}, {}", cell.row);
            assert_eq!(run.load.total.errors.sum(), 0, "{scenario}, {}: {:?}", cell.row, run.load.total.errors);
        }
    }
}

#[test]
fn mercure_distributes_what_the_lab_publishes() {
    if !installed(&Place::new("mercure-there"), "mercure") {
        return;
    }
    let result = tiny("sse-fanout", "mercure");
    let [run] = result.cells[0].runs() else { panic!("{:?}", result.cells[0].outcome) };
    // Ten events per second, for three seconds and three clients.
    assert!((1..=93).contains(&run.load.total.completed), "{}", run.load.total.completed);
    assert_eq!(run.load.total.errors.sum(), 0, "{:?}", run.load.total.errors);
}

#[test]
fn idle_connections_come_from_several_processes() {
    let place = Place::new("idle");
    let scenario = "{name: idle, title: A, about: b, targets: [none], baseline: none, connections: [60], \
        load: {processes: 3}, method: {warmup_s: 0, measured_s: 3, repeats: 1}, \
        rows: [{name: held, speak: {protocol: idle}}]}";
    fs::write(place.0.join("idle.yaml"), scenario).unwrap();
    let output = place.lab(&["run", "idle.yaml", "--out", "out", "--cache", "cache"]);
    let file = place.results(".json").pop().unwrap_or_else(|| panic!("{}", text(&output)));
    let result = ResultFile::read(&file).unwrap();
    let run = &result.cells[0].runs()[0];
    assert_eq!((run.load.generator.threads.len(), run.load.total.due), (3, 60));
    // A busy machine may not open all connections in time.
    assert!(run.held().is_some_and(|held| held > 0), "{:?}", run.load.connections);
    let limit = run.target_files.expect("Linux says it");
    assert!(run.processes[0].samples.iter().all(|sample| (1..=limit).contains(&sample.fds_most)));
}

#[test]
fn calls_of_grpc_are_rows_of_a_scenario() {
    let place = Place::new("grpc");
    let proto = "syntax = \"proto3\"; package echo; message Text { string text = 1; } \
        service Echo { rpc Say(Text) returns (Text); }";
    fs::write(place.0.join("echo.proto"), proto).unwrap();
    let scenario = "{name: grpc, title: A, about: b, targets: [none], baseline: none, connections: [2], \
        backend: {http2: true}, method: {warmup_s: 0, measured_s: 1, repeats: 1}, rows: [{name: say, \
        speak: {protocol: http2, streams: 4}, request: {grpc: {call: echo.Echo/Say, proto: echo.proto}, \
        body: '{\"text\": \"hi\"}', check: [{json: /text, equals: hi}]}}]}";
    fs::write(place.0.join("grpc.yaml"), scenario).unwrap();
    let output = place.lab(&["run", "grpc.yaml", "--out", "out", "--cache", "cache"]);
    let file = place.results(".json").pop().unwrap_or_else(|| panic!("{}", text(&output)));
    let result = ResultFile::read(&file).unwrap();
    let total = &result.cells[0].runs()[0].load.total;
    assert!(total.completed > 0 && total.messages == total.completed, "{}", text(&output));
    assert_eq!((total.statuses.keys().copied().collect::<Vec<u16>>(), total.failed()), (vec![0], 0));
    let findings = lint::judge(&lint::evidence_of(&result));
    assert!(findings.iter().all(|finding| !finding.rule.contains("2xx")), "{findings:?}");

    fs::write(place.0.join("grpc.yaml"), scenario.replace("http2, streams: 4", "http1")).unwrap();
    let refused = text(&place.lab(&["run", "grpc.yaml"]));
    assert!(refused.contains("rows[0].speak: a call of gRPC needs HTTP/2"), "{refused}");
}

#[test]
fn clients_that_connect_at_once_are_beside_the_figures() {
    let place = Place::new("new-clients");
    let scenario = SCENARIO
        .replace("repeats: 2 }", "repeats: 1 }\nload: { rate: 200 }")
        .replace("[2, 4]", "[2]")
        .replace("[mean]", "[new_clients]")
        .replace("  - name: GET\n", "  - name: GET\n    new_clients: { count: 20, every_s: 0.5 }\n");
    fs::write(place.0.join("smoke.yaml"), scenario).unwrap();
    let output = place.lab(&["run", "smoke.yaml", "--row", "GET", "--out", "out", "--cache", "cache"]);
    let printed = text(&output);
    assert!(printed.contains("new clients"), "{printed}");
    let result = ResultFile::read(&place.results(".json").pop().unwrap()).unwrap();
    let run = &result.cells.iter().find(|cell| cell.row == "GET").expect("measured").runs()[0];
    let served = run.new_clients.expect("they are told");
    assert_eq!(served.answered + served.failed, 40, "twice in the measured second");
    assert!(served.answered > 0, "a machine that is busy may not get to all of them: {served:?}");
    assert_eq!(run.load.total.due, 200, "the figures are those of the row's clients");
}

#[test]
fn tornado_reverses_messages() {
    if !installed(&Place::new("tornado-there"), "tornado") {
        return;
    }
    let result = answered("tornado", "speak: {protocol: web_socket, message_bytes: 500, per_second: 20}");
    let total = &result.cells[0].runs()[0].load.total;
    // The engine checks that each message came back reversed.
    assert!(total.completed > 0 && total.errors.sum() == 0, "{:?}", total.errors);
}

#[test]
fn wrong_arguments_are_named() {
    let place = Place::new("wrong");
    let cases: [(&[&str], &str); 6] = [
        (&["run", "nothing"], "no scenario \"nothing\"; there are: "),
        (&["run", "smoke.yaml", "--row", "PUT"], "the rows are: GET · key-auth"),
        (&["run", "smoke.yaml", "--targets", "ngnix"], "no peer \"ngnix\"; there are: "),
        (&["run", "wso2-streaming", "--backend", "netty"], "not supported by netty: websocket"),
        (&["install", "tornato"], "or the backends crs, envoy-services, netty, nginx, opensearch, tornado"),
        (&["report", "smoke.yaml"], "not a result of `weir bench run`"),
    ];
    for (arguments, words) in cases {
        let output = place.lab(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output).contains(words), "{arguments:?}: {}", text(&output));
    }
}
