//! What a run on several machines does not do.

use super::super::machine_error::MachinesRefusal;
use crate::run::RunOptions;
use crate::scenario::{Scenario, ScenarioRow, Speak};

impl MachinesRefusal {
    /// The first thing in a scenario, or in the options of the run, that needs one machine.
    pub(in crate::run) fn of(scenario: &Scenario, options: &RunOptions) -> Option<MachinesRefusal> {
        MachinesRefusal::first(scenario, options.valgrind, options.flame_graph)
    }

    fn first(scenario: &Scenario, valgrind: bool, flame_graph: bool) -> Option<MachinesRefusal> {
        let claims = [
            (valgrind, "counted instructions (--valgrind)"),
            (flame_graph, "samples of stacks (--flame-graph)"),
            (scenario.method.slices > 1, "turns of targets (method.slices)"),
            (!scenario.searches.is_empty(), "searches"),
            (scenario.load.processes > 1, "generator processes (load.processes)"),
        ];
        claims.into_iter().find(|(is_asked, _)| *is_asked).map(|(_, what)| MachinesRefusal(what))
    }
}

/// Why a row cannot be measured on several machines.
pub(in crate::run) fn refusal(row: &ScenarioRow, generators: usize) -> Option<String> {
    let what = match row {
        _ if !row.events.is_empty() => "events",
        _ if row.new_clients.is_some() => "clients that connect at once",
        _ if row.route_changes_per_s.is_some() => "changes of routes",
        _ if row.fan_out.is_some() || matches!(row.speak, Speak::WebSub { .. }) => "deliveries of a hub",
        _ if ["{store}", "{syslog_port}", "{service:"].iter().any(|name| row.names(name)) => {
            "stores and services beside the target"
        }
        _ if row.endpoints > 0 => "upstreams of their own (endpoints)",
        _ if generators > 1 && matches!(row.speak, Speak::Sse { .. }) => "several generators of event streams",
        _ => return None,
    };
    Some(format!("a run on several machines has no {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario;

    fn parsed(settings: &str, row: &str) -> Scenario {
        let text = format!(
            "{{name: a, title: A, about: b, targets: [none], baseline: none, connections: [1], {settings} \
             rows: [{{name: r, {row}}}]}}"
        );
        scenario::parse("a.yaml", &text).unwrap()
    }

    #[test]
    fn a_scenario_that_needs_one_machine_is_refused_by_name() {
        let plain = parsed("", "routes: 1");
        assert!(MachinesRefusal::first(&plain, false, false).is_none() && refusal(&plain.rows[0], 2).is_none());
        let error = MachinesRefusal::first(&plain, true, false).unwrap().to_string();
        assert!(error.contains("--valgrind"), "{error}");
        let turns = parsed("method: {slices: 2},", "routes: 1");
        assert!(MachinesRefusal::first(&turns, false, false).unwrap().to_string().contains("method.slices"));
        let of_row = |row: &str| refusal(&parsed("", row).rows[0], 2).unwrap_or_default();
        assert!(of_row("events: [{at_s: 1, action: kill_backend}]").contains("no events"));
        assert!(of_row("policies: {syslog: {host: a, port: '{syslog_port}'}}").contains("stores and services"));
        assert!(of_row("speak: {protocol: sse, event_bytes: 82, per_second: 1}").contains("several generators"));
        let alone = parsed("", "speak: {protocol: sse, event_bytes: 82, per_second: 1}");
        assert_eq!(refusal(&alone.rows[0], 1), None);
    }
}
