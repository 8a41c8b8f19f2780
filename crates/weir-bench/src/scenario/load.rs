use std::path::Path;

use super::{FanOut, NewClients, Scenario, ScenarioError, ScenarioRow, Speak, keys};
use crate::{backend::BackendDelay, errors::FileError, library, target};

/// Names of the built-in scenarios.
pub fn names() -> Vec<String> {
    library::list("scenarios/")
        .into_iter()
        .filter_map(|path| Some(path.strip_prefix("scenarios/")?.strip_suffix(".yaml")?.to_owned()))
        .collect()
}

/// Reads a built-in scenario by name, or a file when `name` is a path.
pub fn read(name: &str) -> Result<Scenario, ScenarioError> {
    if name.ends_with(".yaml") || name.ends_with(".yml") || name.contains('/') {
        let path = Path::new(name);
        let text = std::fs::read_to_string(path).map_err(FileError::at(path))?;
        return parse(name, &text);
    }
    let path = format!("scenarios/{name}.yaml");
    let unknown = || ScenarioError::Unknown { name: name.to_owned(), known: names() };
    let text = library::text(&path).ok_or_else(unknown)?;
    parse(&path, &text)
}

/// Parses and checks a scenario; `place` names its source in errors.
pub fn parse(place: &str, text: &str) -> Result<Scenario, ScenarioError> {
    let wrong = |error| match keys::problems(text) {
        problems if problems.is_empty() => ScenarioError::Syntax { place: place.to_owned(), source: Box::new(error) },
        problems => ScenarioError::Problems { place: place.to_owned(), problems },
    };
    let scenario: Scenario = serde_saphyr::from_str(text).map_err(wrong)?;
    let problems = problems(&scenario);
    if problems.is_empty() {
        return Ok(scenario);
    }
    Err(ScenarioError::Problems { place: place.to_owned(), problems })
}

/// The longest warm-up and the longest measured part, in seconds: a day.
const LONGEST_S: f64 = 86_400.0;

/// Checks what the command line may replace. `counts_only`: no repeat is needed, since only instructions are counted.
pub fn check_settings(scenario: &Scenario, counts_only: bool) -> Result<(), ScenarioError> {
    let mut problems = Vec::new();
    let mut claim = |holds: bool, problem: String| {
        if !holds {
            problems.push(problem);
        }
    };
    claim(scenario.method.repeats > 0 || counts_only, "method.repeats: 0 is possible only with --valgrind".to_owned());
    method_problems(scenario, &mut claim);
    for row in scenario.rows.iter().enumerate() {
        level_problems(scenario, row, &mut claim);
    }
    network_problems(scenario, &mut claim);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(ScenarioError::Problems { place: String::new(), problems }),
    }
}

/// The shortest pause between two times at which new clients connect, in seconds.
const SHORTEST_PAUSE_S: f64 = 0.1;

fn is_ascending(levels: &[u32]) -> bool {
    !levels.is_empty() && levels[0] > 0 && levels.windows(2).all(|pair| pair[0] < pair[1])
}

fn network_problems(scenario: &Scenario, claim: &mut dyn FnMut(bool, String)) {
    for problem in scenario.network.iter().flat_map(|network| network.problems()) {
        claim(false, problem);
    }
}

/// Problems of the levels and the method.
fn method_problems(scenario: &Scenario, claim: &mut dyn FnMut(bool, String)) {
    claim(!scenario.workers.is_empty() && !scenario.workers.contains(&0), "workers: 1 or more".to_owned());
    claim(is_ascending(&scenario.connections), "connections: ascending numbers from 1".to_owned());
    let method = &scenario.method;
    claim(method.slices > 0, "method.slices: 1 or more".to_owned());
    claim(
        method.slices <= 1 || scenario.searches.is_empty(),
        "method.slices: searches use whole runs; leave it at 1".to_owned(),
    );
    claim(
        method.measured_s > 0.0 && method.measured_s <= LONGEST_S,
        format!("method.measured_s: {} is not more than 0 and at most {LONGEST_S}", method.measured_s),
    );
    claim(
        (0.0..=LONGEST_S).contains(&method.warmup_s),
        format!("method.warmup_s: {} is not between 0 and {LONGEST_S}", method.warmup_s),
    );
    claim(
        (0.5..1.0).contains(&method.confidence),
        format!("method.confidence: {} is not between 0.5 and 1; 0.95 is usual", method.confidence),
    );
}

/// What a row asks of the levels and the method.
fn level_problems(scenario: &Scenario, (index, row): (usize, &ScenarioRow), claim: &mut dyn FnMut(bool, String)) {
    let method = &scenario.method;
    let levels = scenario.levels(row).len() * scenario.workers.len();
    claim(
        row.events.is_empty() || (levels == 1 && method.slices == 1),
        format!("rows[{index}].events: need one level, one number of workers and method.slices: 1"),
    );
    claim(
        row.route_changes_per_s.is_none() || (levels == 1 && method.slices == 1),
        format!("rows[{index}].route_changes_per_s: needs one level, one number of workers and method.slices: 1"),
    );
    claim(
        row.events.iter().all(|event| (0.0..method.measured_s).contains(&event.at_s)),
        format!("rows[{index}].events: at_s is between 0 and method.measured_s"),
    );
}

fn problems(scenario: &Scenario) -> Vec<String> {
    let mut problems = Vec::new();
    let peers = target::names();
    let mut claim = |holds: bool, problem: String| {
        if !holds {
            problems.push(problem);
        }
    };
    claim(!scenario.targets.is_empty(), "targets: name at least one peer".to_owned());
    claim(
        scenario.targets.contains(&scenario.baseline),
        format!("baseline: \"{}\" is not among the targets", scenario.baseline),
    );
    claim(!scenario.rows.is_empty(), "rows: at least one is needed".to_owned());
    for problem in scenario.workload_problems().into_iter().chain(scenario.backend_problems()) {
        claim(false, problem);
    }
    claim(
        scenario.method.repeats > 0,
        "method.repeats: 1 or more; 5 or more for a result without a warning".to_owned(),
    );
    method_problems(scenario, &mut claim);
    network_problems(scenario, &mut claim);
    for (index, row) in scenario.rows.iter().enumerate() {
        row_problems(scenario, (index, row), &mut claim);
    }
    for (index, pair) in scenario.ablations.iter().enumerate() {
        for name in [&pair.with, &pair.without] {
            claim(scenario.row(name).is_some(), format!("ablations[{index}]: there is no row \"{name}\""));
        }
    }
    for name in scenario.variants.keys() {
        claim(!peers.contains(name), format!("variants: \"{name}\" is a peer's name; choose another"));
    }
    for name in scenario.quick.rows.iter().flatten() {
        claim(scenario.row(name).is_some(), format!("quick.rows: there is no row \"{name}\""));
    }
    for target in scenario.quick.targets.iter().flatten() {
        claim(scenario.targets.contains(target), format!("quick.targets: \"{target}\" is not among the targets"));
    }
    problems
}

fn row_problems(scenario: &Scenario, (index, row): (usize, &ScenarioRow), claim: &mut dyn FnMut(bool, String)) {
    let method = &scenario.method;
    let ScenarioRow { name, connections, compare_with, .. } = row;
    claim(
        scenario.rows[..index].iter().all(|other| other.name != *name),
        format!("rows[{index}].name: \"{name}\" is already another row's"),
    );
    claim(
        connections.as_deref().is_none_or(is_ascending),
        format!("rows[{index}].connections: ascending numbers from 1"),
    );
    if let Some(rate_of) = &row.rate_of {
        let other = &rate_of.row;
        claim(
            scenario.row(other).is_some_and(|other| other.rate_of.is_none()),
            format!("rows[{index}].rate_of.row: there is no row \"{other}\" that can be measured first"),
        );
        claim(rate_of.times > 0.0, format!("rows[{index}].rate_of.times: more than 0"));
    }
    let delay = scenario.backend(row).delay.as_deref().map(str::parse::<BackendDelay>);
    if let Some(Err(error)) = delay {
        claim(false, format!("the backend of rows[{index}], delay: {error}"));
    }
    level_problems(scenario, (index, row), claim);
    claim(
        row.route_changes_per_s.is_none_or(|per_s| per_s > 0.0)
            && (row.route_changes_per_s.is_none() || row.endpoints > 0),
        format!("rows[{index}].route_changes_per_s: more than 0, and the row needs `endpoints`"),
    );
    claim(row.routes > 0, format!("rows[{index}].routes: 1 or more"));
    if let Some(FanOut { subscribers, per_second, .. }) = &row.fan_out {
        let place = format!("rows[{index}].fan_out");
        claim(*subscribers > 0 && *per_second > 0.0, format!("{place}: subscribers and per_second are more than 0"));
        claim(row.needs.iter().any(|need| need == "websub"), format!("{place}: the row needs `needs: [websub]`"));
        claim(method.slices == 1, format!("{place}: needs method.slices: 1"));
        claim(row.speak.asks(), format!("{place}: stands beside requests of HTTP only"));
        claim(row.routes == 1, format!("{place}: needs `routes: 1`, since the hub has a route of its own"));
    }
    if let Some(NewClients { count, every_s }) = row.new_clients {
        let place = format!("rows[{index}].new_clients");
        claim(
            count > 0 && (SHORTEST_PAUSE_S..=LONGEST_S).contains(&every_s),
            format!("{place}: count is 1 or more, every_s between {SHORTEST_PAUSE_S} and {LONGEST_S}"),
        );
        claim(method.slices == 1, format!("{place}: needs method.slices: 1"));
        claim(matches!(row.speak, Speak::Http1), format!("{place}: stands beside requests of HTTP/1.1 only"));
    }
    claim(
        row.keep_alive.unwrap_or(scenario.load.keep_alive) || row.speak.streams().is_none(),
        format!("rows[{index}].keep_alive: HTTP/2 and HTTP/3 keep their connections"),
    );
    claim(
        scenario.tls(row) || !matches!(row.speak, Speak::Http3 { .. }),
        format!("rows[{index}].speak: HTTP/3 has no form without TLS; set `tls: true` in the row"),
    );
    if let Some(other) = compare_with {
        claim(scenario.row(other).is_some(), format!("rows[{index}].compare_with: there is no row \"{other}\""));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::BackendKind;

    const SMALLEST: &str =
        "{name: a, title: A, about: b, targets: [none], baseline: none, connections: [1], rows: [{name: get}]}";

    #[test]
    fn the_smallest_scenario_gets_the_documented_defaults() {
        let scenario = parse("a.yaml", SMALLEST).unwrap();
        assert_eq!(scenario.method.repeats, 5);
        assert_eq!(scenario.rows[0].request.method, "GET");
        assert_eq!(scenario.workers, [1]);
    }

    #[test]
    fn every_scenario_that_comes_along_parses_also_when_quick() {
        let names = names();
        assert!(names.len() >= 7, "{names:?}");
        for name in names {
            let scenario = read(&name).unwrap().quickened();
            assert_eq!(scenario.name, name);
            assert!(!scenario.rows.is_empty());
        }
    }

    #[test]
    fn errors_name_the_place_and_come_all_at_once() {
        let text = SMALLEST.replace("baseline: none", "baseline: nginx").replace("[1]", "[8, 4]");
        let error = parse("a.yaml", &text).unwrap_err().to_string();
        assert!(error.contains("a.yaml: baseline: \"nginx\" is not among the targets"), "{error}");
        assert!(error.contains("a.yaml: connections: ascending"), "{error}");
        let error = parse("a.yaml", &SMALLEST.replace("title", "tilte")).unwrap_err().to_string();
        assert!(error.contains("tilte"), "{error}");
        let error = parse("a.yaml", "{name: a, rows: [{name: get}, {rate: 5}], colour: red}").unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines.len(), 7, "{error}");
        for missing in ["title", "about", "targets", "baseline", "connections", "rows[1].name"] {
            let start = format!("a.yaml: {missing}: is missing: ");
            assert!(lines.iter().any(|line| line.starts_with(&start)), "{missing}: {error}");
        }
        assert!(error.contains("a.yaml: colour: there is no such key, but "), "{error}");
        assert!(read("nothing").unwrap_err().to_string().contains("there are: "));
    }

    #[test]
    fn times_and_levels_from_the_command_line_are_checked() {
        let says = |change: fn(&mut Scenario), words: &str| {
            let mut scenario = parse("a.yaml", SMALLEST).unwrap();
            change(&mut scenario);
            let error = check_settings(&scenario, false).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        for seconds in [-1.0, 0.0, f64::NAN, f64::INFINITY, 1e300] {
            let text = SMALLEST.replace("title", &format!("method: {{measured_s: {seconds:?}}}, title"));
            if seconds.is_finite() {
                assert!(parse("a.yaml", &text).unwrap_err().to_string().contains("method.measured_s"), "{seconds}");
            }
            let mut scenario = parse("a.yaml", SMALLEST).unwrap();
            scenario.method.measured_s = seconds;
            assert!(
                check_settings(&scenario, false).unwrap_err().to_string().contains("method.measured_s: "),
                "{seconds}"
            );
        }
        says(|scenario| scenario.method.warmup_s = -1.0, "method.warmup_s: -1 is not between 0 and");
        says(|scenario| scenario.workers = vec![0], "workers: 1 or more");
        says(|scenario| scenario.connections = vec![100, 50], "connections: ascending");
        says(|scenario| scenario.method.repeats = 0, "method.repeats: 0 is possible only with --valgrind");
        let mut counted = parse("a.yaml", SMALLEST).unwrap();
        counted.method.repeats = 0;
        assert!(check_settings(&counted, true).is_ok());
    }

    #[test]
    fn a_load_that_cannot_be_meant_is_said_with_its_place() {
        let says = |load: &str, row: &str, words: &str| {
            let text = SMALLEST.replace("rows: [{name: get}]", &format!("load: {load}, rows: [{{name: get, {row}}}]"));
            let error = parse("a.yaml", &text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        let open = "pacing: {kind: open, rate: {constant: 5}}";
        says(&format!("{{rate: 5, {open}}}"), "", "load.pacing: replaces rate, ramp_up_s and think_ms");
        says("{}", &format!("rate: 5, {open}"), "rows[0].pacing: replaces rate and rate_of");
        says("{}", "pacing: {kind: open, rate: {steps: []}}", "rows[0].pacing.rate: must be requests per second");
        says(
            "{}",
            "pacing: {kind: replay, at_ns: [5, 3]}",
            "rows[0].pacing.at_ns: must be at least one time, in ascending",
        );
        says("{}", "pacing: {kind: opne}", "opne");
        says("{}", "requests: [{weight: 0}]", "rows[0].requests: at least one needs a weight above 0");
        says("{}", "requests: [{path: get}, {method: G T}]", "rows[0].requests[0].path: \"get\" does not start with /");
        says("{}", "request: {expect_status: [20]}", "rows[0].request.expect_status: 20 is not between 100 and 599");
        let sized_call = "request: {body_bytes: 5, grpc: {call: a.B/C, proto: b.proto}}";
        says("{}", sized_call, "rows[0].request.body_bytes: must be left out");
        says(
            "{tls: true}",
            "request: {host: b.example}",
            "rows[0].request.host: over TLS the host is always localhost",
        );
        says("{processes: 4}", "", "load.processes: more than one process is possible with idle connections only");
        says("{processes: 0}", "", "load.processes: 0 is not between 1 and 250");
        says(&format!("{{{open}}}"), "speak: {protocol: idle}", "rows[0]: pacing applies to requests only");
        let http3 = "speak: {protocol: http3, streams: 8}";
        says("{}", http3, "rows[0].speak: HTTP/3 has no form without TLS; set `tls: true` in the row");
        says("{tls: true, keep_alive: false}", http3, "rows[0].keep_alive: HTTP/2 and HTTP/3 keep their connections");
    }

    #[test]
    fn a_backend_that_cannot_do_what_a_row_asks_is_refused() {
        let streams = || read("wso2-streaming").unwrap();
        assert!(streams().with_backend(BackendKind::Tornado).is_ok());
        let error = streams().with_backend(BackendKind::Netty).unwrap_err().to_string();
        assert!(error.contains("rows[0], \"WebSocket, 1 message/s\": not supported by netty: websocket"), "{error}");
        let text = SMALLEST.replace("{name: get}", "{name: get, backend: {kind: nginx, delay: 1s}}");
        let error = parse("a.yaml", &text).unwrap_err().to_string();
        assert!(error.contains("a.yaml: rows[0], \"get\": not supported by nginx: delay"), "{error}");
        let error =
            parse("a.yaml", &SMALLEST.replace("title", "backend: {kind: nety}, title")).unwrap_err().to_string();
        assert!(error.contains("nety") && error.contains("tornado"), "{error}");
    }
}
