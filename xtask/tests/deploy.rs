//! What is in `deploy/`, tried with the tools that read it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use weir_testkit::{Program, TempDir, skipped};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[track_caller]
fn succeeds(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// Names that begin as metrics of ours do, without what Prometheus adds to a histogram's.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !is_part(letter)).filter(|word| word.starts_with("weir_"));
    words.map(|word| word.strip_suffix("_bucket").unwrap_or(word)).collect()
}

/// Every expression of every panel.
fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.map(|target| target["expr"].as_str().expect("an expression").replace("$__rate_interval", "5m")).collect()
}

#[test]
fn alert_rules_are_rules_and_fire_on_what_they_say() {
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]] {
        let Some(mut promtool) = Program::find("promtool") else { return };
        succeeds(promtool.args(arguments).current_dir(root().join("deploy")));
    }
}

#[test]
fn the_dashboard_asks_what_prometheus_can_answer() {
    let dashboard: Value = serde_json::from_str(&read("deploy/dashboard.json")).expect("JSON");
    let expressions = expressions(&dashboard);
    assert!(expressions.len() > 20, "{}", expressions.len());
    let ids: Vec<u64> =
        dashboard["panels"].as_array().into_iter().flatten().filter_map(|it| it["id"].as_u64()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "an id stands twice");
    let Some(mut promtool) = Program::find("promtool") else { return };
    // As recording rules, which promtool parses.
    let rule =
        |(number, expression): (usize, &String)| format!("      - {{ record: r{number}, expr: {expression:?} }}\n");
    let rules: String = expressions.iter().enumerate().map(rule).collect();
    let place = TempDir::new();
    let rules = place.write("rules.yaml", format!("groups:\n  - name: dashboard\n    rules:\n{rules}"));
    succeeds(promtool.args(["check", "rules"]).arg(rules));
}

/// The dashboard as a program in TypeScript, whose types are those of Grafana: an unknown or missing member does not compile.
fn typed(dashboard: &Value) -> String {
    let panels = || dashboard["panels"].as_array().into_iter().flatten().filter(|panel| panel["type"] == "timeseries");
    let options: Vec<&Value> = panels().map(|panel| &panel["options"]).collect();
    let fields: Vec<&Value> = panels().map(|panel| &panel["fieldConfig"]["defaults"]["custom"]).collect();
    let fields: Vec<&&Value> = fields.iter().filter(|custom| !custom.is_null()).collect();
    let types = "./node_modules/@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/types.gen";
    format!(
        "import type {{ Dashboard }} from '@grafana/schema';\nimport type {{ FieldConfig, Options }} from '{types}';\n\
         // In JSON a member of an enumeration is its text.\n\
         type Json<T> = T extends string ? `${{T}}` : T extends object ? {{ [K in keyof T]: Json<T[K]> }} : T;\n\
         export const dashboard: Dashboard = {dashboard};\nexport const options: Json<Options>[] = {};\n\
         export const fields: Json<FieldConfig>[] = {};\n",
        serde_json::json!(options),
        serde_json::json!(fields)
    )
}

#[test]
fn the_dashboard_has_the_types_of_grafana() {
    let Ok(modules) = root().join(".cache/grafana/node_modules").canonicalize() else {
        return skipped("there is no `@grafana/schema`");
    };
    let Some(node) = Program::find("node") else { return };
    let mut dashboard: Value = serde_json::from_str(&read("deploy/dashboard.json")).expect("JSON");
    let place = TempDir::new();
    std::os::unix::fs::symlink(&modules, place.path().join("node_modules")).expect("the directory is ours");
    let arguments = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler"];
    let compile = |dashboard: &Value| {
        place.write("dashboard.ts", typed(dashboard));
        let mut tsc = Command::new(node.get_program());
        tsc.arg(modules.join("typescript/bin/tsc")).args(arguments).arg("dashboard.ts").current_dir(place.path());
        tsc.output().expect("node starts")
    };
    let outcome = compile(&dashboard);
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stdout));
    // The check finds what is wrong.
    dashboard["panels"][1]["titel"] = "Requests".into();
    let outcome = compile(&dashboard);
    assert!(String::from_utf8_lossy(&outcome.stdout).contains("titel"), "{outcome:?}");
}

#[test]
fn alerts_and_dashboard_name_metrics_that_there_are() {
    let (alerts, dashboard) = (read("deploy/alerts.yaml"), read("deploy/dashboard.json"));
    let (page, labels) = (read("docs/reference/metrics.md"), ["weir_info"]);
    for name in metrics_in(&alerts).into_iter().chain(metrics_in(&dashboard)) {
        let is_known = page.contains(&format!("| `{name}` |")) || labels.contains(&name);
        assert!(is_known, "{name} is not a metric of weir's");
    }
    for alert in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(read("docs/guide/watching.md").contains(alert), "docs/guide/watching.md does not explain {alert}");
    }
}

/// 2.0 and more is what systemd calls medium.
#[test]
fn the_unit_exposes_little() {
    let found = Command::new("systemd-analyze").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        return skipped("there is no systemd-analyze");
    }
    let unit = root().join("deploy/weir.service");
    succeeds(Command::new("systemd-analyze").args(["security", "--offline=true", "--threshold=19"]).arg(unit));
}
