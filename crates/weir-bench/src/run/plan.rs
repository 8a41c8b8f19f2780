//! Derives from a scenario the use of processors, the order of runs, and the plans for the load engine. Pure.

use std::{net::SocketAddr, path::PathBuf};

use super::credentials;
use crate::{
    engine::{
        ClientTls, EchoCheck, LoadPlan, LoadTimeouts, Pacing, PlanData, Protocol, Rate, RequestBody, RequestTemplate,
        Spacing, StopCondition, Think,
    },
    manifest::{LogicalCpu, Pinning},
    result::LoadLevel,
    scenario::{FanOut, RequestSpec, Scenario, ScenarioRow, Speak, TableColumn},
    stats::SeededRandom,
    target::{self, PeerEvents},
};

/// The destination of a load.
#[derive(Clone, Debug)]
pub struct LoadDestination {
    pub address: SocketAddr,
    pub tls: bool,
    /// The CA certificate of the destination.
    pub authority: Option<PathBuf>,
    /// How events are published to it, if they do not come from the backend.
    pub events: Option<PeerEvents>,
}

/// Divides `cpus` among the roles: the target first, on cores of its own if there are enough.
///
/// The rest is for the generator and the backend. If that is a single processor, they share it, unless the backend has
/// to be `alone`: then the generator shares those of the target. With 0 workers there is no target. A single processor
/// is shared by all.
pub fn pinning(cpus: &[LogicalCpu], workers: u32, alone: bool) -> Pinning {
    let ids = by_core(cpus);
    if ids.len() < 2 {
        let target = if workers == 0 { Vec::new() } else { ids.clone() };
        return Pinning { target, generator: ids.clone(), backend: ids };
    }
    let target = (workers as usize).min(ids.len() - 1);
    let rest = &ids[target..];
    let (generator, backend) = match rest {
        [one] if alone => (ids[..target].to_vec(), vec![*one]),
        [one] => (vec![*one], vec![*one]),
        _ => {
            let (generator, backend) = rest.split_at(rest.len().div_ceil(2));
            (generator.to_vec(), backend.to_vec())
        }
    };
    Pinning { target: ids[..target].to_vec(), generator, backend }
}

/// The processors, one thread of every core first, so that two workers do not share a core while another is idle.
pub(super) fn by_core(cpus: &[LogicalCpu]) -> Vec<u32> {
    let mut ordered: Vec<(usize, LogicalCpu)> = cpus
        .iter()
        .enumerate()
        .map(|(index, cpu)| {
            let same_core =
                cpus[..index].iter().filter(|other| (other.socket, other.core) == (cpu.socket, cpu.core)).count();
            (same_core, *cpu)
        })
        .collect();
    ordered.sort_by_key(|(thread, cpu)| (*thread, cpu.id));
    ordered.into_iter().map(|(_, cpu)| cpu.id).collect()
}

/// A target with one configuration, which is started once and loaded at each of its levels.
#[derive(Clone, Debug, PartialEq)]
pub struct CellGroup {
    pub row: String,
    pub target: String,
    pub levels: Vec<LoadLevel>,
}

/// The groups of one repeat. The order of rows, and of targets within a row, is random, so that slow changes of the
/// machine affect all alike, and short disturbances do not always affect the same one.
pub fn order(scenario: &Scenario, repeat: u32, seed: u64) -> Vec<Vec<CellGroup>> {
    let mut random = SeededRandom::new(seed ^ u64::from(repeat).wrapping_mul(0x9E37_79B9));
    let mut rows: Vec<Vec<CellGroup>> = Vec::new();
    for row in &scenario.rows {
        for workers in &scenario.workers {
            let rate = scenario.rate(row);
            let levels: Vec<LoadLevel> = scenario
                .levels(row)
                .iter()
                .map(|connections| LoadLevel { connections: *connections, rate, workers: *workers })
                .collect();
            let mut groups: Vec<CellGroup> = scenario
                .targets
                .iter()
                .map(|target| CellGroup { row: row.name.clone(), target: target.clone(), levels: levels.clone() })
                .collect();
            random.shuffle(&mut groups);
            rows.push(groups);
        }
    }
    random.shuffle(&mut rows);
    // Rows that use the rate of another row come after it.
    rows.sort_by_key(|groups| {
        let row = groups.first().and_then(|group| scenario.row(&group.row));
        row.is_some_and(|row| row.rate_of.is_some())
    });
    rows
}

/// How long a generator spins that has its processors for itself, so that no other process loses time, in ns.
pub(super) const ALONE_SPIN_NS: u64 = 1_000_000;

/// The plan of the load engine for one run.
pub fn load(
    scenario: &Scenario,
    row: &ScenarioRow,
    level: LoadLevel,
    to: &LoadDestination,
    pinning: &Pinning,
    seed: u64,
) -> LoadPlan {
    let connections = level.connections as usize;
    let (method, load) = (&scenario.method, &scenario.load);
    let share_ms = |seconds: f64| (seconds * 1e3 / f64::from(method.slices)) as u64;
    let (warm_up_ms, measured_ms) = (share_ms(method.warmup_s), share_ms(method.measured_s));
    let keep_alive = row.keep_alive.unwrap_or(load.keep_alive);
    let (protocol, scheme) = protocol(row, &to.tls, || own_topic(level, seed));
    let rate = level.rate.or_else(|| {
        let per_second = row.speak.per_second()?;
        // WebSub has one publisher, whatever the number of subscribers; each WebSocket client sends its own messages.
        Some(if matches!(row.speak, Speak::WebSub { .. }) { per_second } else { per_second * connections as f64 })
    });
    let said = scenario.pacing(row);
    let pacing = match (rate, said) {
        (Some(rate), Some(Pacing::Open { spacing, .. })) => {
            Pacing::Open { rate: Rate::Constant(rate), spacing: *spacing }
        }
        (Some(rate), _) => Pacing::Open { rate: Rate::Constant(rate), spacing: Spacing::Even },
        (None, Some(pacing)) => pacing.clone(),
        (None, None) => Pacing::Closed {
            think: if load.think_ms > 0.0 { Think::FixedMs(load.think_ms) } else { Think::None },
            ramp_up_ms: ((load.ramp_up_s * 1e3) as u64).min(warm_up_ms),
        },
    };
    let usual = LoadPlan::closed("", connections, StopCondition::default());
    // Spinning would take half a processor from the backend or the target, if they share it with the generator.
    let shares = |cpus: &[u32]| pinning.generator.iter().any(|cpu| cpus.contains(cpu));
    let spin_ns = if shares(&pinning.backend) || shares(&pinning.target) { 0 } else { ALONE_SPIN_NS };
    LoadPlan {
        requests: requests(row, scheme, to),
        selection: row.selection,
        protocol,
        threads: pinning.generator.len().clamp(1, connections.max(1)),
        pacing,
        stop: StopCondition { duration_ms: Some(measured_ms), count: load.count },
        warm_up_ms,
        timeouts: LoadTimeouts { response_ms: (load.timeout_s * 1e3) as u64, ..LoadTimeouts::default() },
        keep_alive,
        data: data(scenario, row),
        cookies: load.cookies && row.speak.asks(),
        connect_to: Some(to.address.to_string()),
        tls: client_tls(row, to, keep_alive),
        // A recovery is measured with a resolution of 0.1 s.
        interval_ms: match scenario.columns.contains(&TableColumn::Recovery) {
            true => 100,
            false => (measured_ms / 10).clamp(100, 1_000),
        },
        cpus: pinning.generator.iter().map(|cpu| *cpu as usize).collect(),
        spin_ns,
        seed,
        ..usual
    }
}

/// Only requests of HTTP are made of data.
fn data(scenario: &Scenario, row: &ScenarioRow) -> PlanData {
    if row.speak.asks() { scenario.load.data.clone() } else { PlanData::default() }
}

/// Sessions are resumed if connections are kept, except over HTTP/3, where the engine refuses that.
fn client_tls(row: &ScenarioRow, to: &LoadDestination, keep_alive: bool) -> ClientTls {
    let resume = keep_alive && !matches!(row.speak, Speak::Http3 { .. });
    ClientTls { ca_file: to.authority.clone(), server_name: None, resume }
}

/// The path of the hub beside the row's own routes.
const HUB_PATH: &str = "/hub";

/// The plan of what a hub delivers beside the row's load.
pub fn fan_out(
    scenario: &Scenario,
    row: &ScenarioRow,
    to: &LoadDestination,
    pinning: &Pinning,
    seed: u64,
) -> Option<LoadPlan> {
    let FanOut { subscribers, payload_bytes, per_second, .. } = row.fan_out.clone()?;
    let beside = ScenarioRow {
        speak: Speak::WebSub { payload_bytes, per_second },
        request: RequestSpec { path: HUB_PATH.to_owned(), ..RequestSpec::default() },
        requests: Vec::new(),
        pacing: None,
        ..row.clone()
    };
    let level = LoadLevel { connections: subscribers, rate: Some(per_second), workers: 1 };
    Some(load(scenario, &beside, level, to, pinning, seed))
}

/// The plan of clients that connect all at once beside the row's load, each for one request.
pub fn new_clients(
    scenario: &Scenario,
    row: &ScenarioRow,
    to: &LoadDestination,
    pinning: &Pinning,
    seed: u64,
) -> Option<LoadPlan> {
    let clients = row.new_clients?;
    let beside = ScenarioRow { keep_alive: Some(false), ..row.clone() };
    let level = LoadLevel { connections: clients.count, rate: None, workers: 1 };
    let plan = load(scenario, &beside, level, to, pinning, seed);
    let method = &scenario.method;
    let at_ns = clients.times_s(method.measured_s).map(|at_s| ((method.warmup_s + at_s) * 1e9) as u64);
    let at_ns = at_ns.flat_map(|at_ns| std::iter::repeat_n(at_ns, clients.count as usize)).collect();
    let stop = StopCondition { count: None, ..plan.stop };
    Some(LoadPlan { pacing: Pacing::Replay { at_ns }, stop, spin_ns: 0, ..plan })
}

/// A topic of this run alone: a hub that serves several levels keeps the subscribers of the earlier ones, who are gone, and its
/// deliveries to them would be part of what is measured.
fn own_topic(level: LoadLevel, seed: u64) -> String {
    format!("http://localhost/topics/{}-{seed:x}", level.connections)
}

fn protocol(row: &ScenarioRow, tls: &bool, topic: impl FnOnce() -> String) -> (Protocol, &'static str) {
    let web = if *tls { "https" } else { "http" };
    match &row.speak {
        Speak::Http1 => (Protocol::Http1, web),
        Speak::Http2 { streams } => (Protocol::Http2 { streams: *streams }, web),
        Speak::Http3 { streams } => (Protocol::Http3 { streams: *streams }, web),
        Speak::WebSocket { message_bytes, .. } => (
            Protocol::WebSocket { message_bytes: *message_bytes, check: EchoCheck::Reversed },
            if *tls { "wss" } else { "ws" },
        ),
        Speak::Sse { .. } => (Protocol::Sse, web),
        Speak::WebSub { payload_bytes, .. } => {
            (Protocol::WebSub { topic: topic(), secret: Some("bench".to_owned()), payload_bytes: *payload_bytes }, web)
        }
        Speak::Idle => (Protocol::Idle { first_request: true }, web),
    }
}

/// The most routes that are requested: the engine keeps a tally for each, and four are enough to make the target search
/// its table.
const ROUTES_ASKED: usize = 4;

/// The routes that are requested, evenly spaced from the first to the last.
pub fn asked_routes(count: usize) -> impl Iterator<Item = usize> {
    let asked = count.min(ROUTES_ASKED);
    (0..asked).map(move |step| if asked > 1 { step * (count - 1) / (asked - 1) } else { 0 })
}

/// The bytes of the time in an event, with the space after it.
const EVENT_TIME: usize = 20;

/// One request of each kind for each requested route, with the credentials of one consumer each.
fn requests(row: &ScenarioRow, scheme: &str, to: &LoadDestination) -> Vec<RequestTemplate> {
    let port = to.address.port();
    if let (Speak::Sse { event_bytes, .. }, Some(events)) = (&row.speak, &to.events) {
        return published(events, *event_bytes, &format!("{scheme}://localhost:{port}"));
    }
    let (routes, consumers) = target::credentials(row.routes, row.consumers);
    let kinds = if row.requests.is_empty() { std::slice::from_ref(&row.request) } else { &row.requests };
    asked_routes(routes.len())
        .flat_map(|index| kinds.iter().map(move |kind| (index, kind)))
        .map(|(index, kind)| {
            let route = &routes[index];
            let headers = kind.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
            let mut headers: Vec<(String, String)> = headers.collect();
            if !consumers.is_empty() {
                let consumer = &consumers[index % consumers.len()];
                headers.extend(credentials::fields(row, consumer, &format!("{}{}", route.prefix, path(row, kind))));
            }
            RequestTemplate {
                name: kind.name.clone(),
                method: kind.method.clone(),
                headers,
                body: match (&kind.body, kind.body_bytes) {
                    (Some(text), _) => RequestBody::Text(text.clone()),
                    (None, 0) => RequestBody::Empty,
                    (None, bytes) => RequestBody::Sized(bytes),
                },
                grpc: kind.grpc.clone(),
                weight: kind.weight,
                expect_status: kind.expect_status.clone(),
                check: kind.check.clone(),
                take: kind.take.clone(),
                follow_redirects: kind.follow_redirects,
                ..RequestTemplate::get(format!(
                    "{scheme}://{}:{port}{}{}",
                    kind.host.as_deref().unwrap_or("localhost"),
                    route.prefix,
                    path(row, kind)
                ))
            }
        })
        .collect()
}

/// The request of the subscribers, and the one that publishes an event of about `event_bytes` bytes.
fn published(events: &PeerEvents, event_bytes: usize, origin: &str) -> Vec<RequestTemplate> {
    let PeerEvents { listen, publish, headers, body } = events;
    let filler = "x".repeat(event_bytes.saturating_sub(EVENT_TIME));
    let publishing = RequestTemplate {
        method: "POST".to_owned(),
        headers: headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        body: RequestBody::Text(body.replace("{filler}", &filler)),
        ..RequestTemplate::get(format!("{origin}{publish}"))
    };
    vec![RequestTemplate::get(format!("{origin}{listen}")), publishing]
}

/// The path at the built-in backend that serves the row's protocol; for requests, the row's own path.
fn path(row: &ScenarioRow, kind: &RequestSpec) -> String {
    match &row.speak {
        Speak::WebSocket { .. } => "/reverse".to_owned(),
        Speak::Sse { event_bytes, per_second } => format!("/sse?rate={per_second}&bytes={event_bytes}"),
        _ if kind.grpc.is_some() => String::new(),
        Speak::Http1 | Speak::Http2 { .. } | Speak::Http3 { .. } | Speak::WebSub { .. } | Speak::Idle => {
            kind.path.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{RateStep, Selection},
        scenario,
    };

    #[test]
    fn new_clients_connect_all_at_the_same_moments() {
        let text = "{name: a, title: A, about: b, targets: [none], baseline: none, connections: [4],
            load: {rate: 100, count: 50}, method: {warmup_s: 1, measured_s: 4},
            rows: [{name: get, new_clients: {count: 3, every_s: 2}}]}";
        let scenario = scenario::parse("a.yaml", text).unwrap();
        let address = "127.0.0.1:1".parse().unwrap();
        let to = LoadDestination { address, tls: false, authority: None, events: None };
        let plan = new_clients(&scenario, &scenario.rows[0], &to, &Pinning::default(), 0).unwrap();
        let at_ns = [[2_000_000_000; 3], [4_000_000_000; 3]].concat();
        assert_eq!((&plan.pacing, plan.connections), (&Pacing::Replay { at_ns }, 3));
        assert!(!plan.keep_alive && plan.stop.count.is_none());
    }

    #[test]
    fn runs_of_a_hub_have_topics_of_their_own() {
        let level = |connections| LoadLevel { connections, rate: None, workers: 1 };
        let topics =
            [(1_000, 1), (10_000, 1), (1_000, 2)].map(|(connections, seed)| own_topic(level(connections), seed));
        assert_eq!(topics.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    }

    #[test]
    fn a_generator_that_shares_its_processor_does_not_spin() {
        let text =
            "{name: a, title: A, about: b, targets: [none], baseline: none, connections: [1], rows: [{name: r}]}";
        let scenario = scenario::parse("a.yaml", text).unwrap();
        let spin_ns = |cores: u32| {
            let (to, level) = (
                LoadDestination {
                    address: SocketAddr::from(([127, 0, 0, 1], 1)),
                    tls: false,
                    authority: None,
                    events: None,
                },
                LoadLevel { connections: 1, rate: Some(1.0), workers: 1 },
            );
            load(&scenario, &scenario.rows[0], level, &to, &pinning(&cpus(cores, 1), 1, false), 0).spin_ns
        };
        assert_eq!([spin_ns(1), spin_ns(2)], [0, 0]);
        assert!(spin_ns(3) > 0);
    }

    fn cpus(cores: u32, threads: u32) -> Vec<LogicalCpu> {
        // As Linux numbers them: the first threads of all cores, then the second ones.
        (0..cores * threads).map(|id| LogicalCpu { id, core: id % cores, socket: 0 }).collect()
    }

    #[test]
    fn the_target_gets_cores_of_its_own() {
        assert_eq!(pinning(&cpus(2, 1), 1, false), Pinning { target: vec![0], generator: vec![1], backend: vec![1] });
        let eight = pinning(&cpus(4, 2), 2, false);
        assert_eq!(eight.target, [0, 1]);
        assert_eq!(eight.generator, [2, 3, 4]);
        assert_eq!(eight.backend, [5, 6, 7]);
        assert_eq!(pinning(&cpus(2, 1), 8, false).target, [0], "one is left for the load");
        let alone = pinning(&cpus(2, 1), 1, true);
        assert_eq!(alone, Pinning { target: vec![0], generator: vec![0], backend: vec![1] });
        assert_eq!(pinning(&cpus(4, 2), 2, true), eight, "it is alone anyway");
        let direct = pinning(&cpus(2, 1), 0, false);
        assert_eq!(direct, Pinning { target: vec![], generator: vec![0], backend: vec![1] });
        assert_eq!(pinning(&cpus(1, 1), 1, false), Pinning { target: vec![0], generator: vec![0], backend: vec![0] });
    }

    #[test]
    fn every_repeat_holds_every_cell_once_in_an_order_of_its_own() {
        let scenario = scenario::read("api7").unwrap();
        let names = |repeat| -> Vec<(String, String)> {
            order(&scenario, repeat, 1).into_iter().flatten().map(|group| (group.row, group.target)).collect()
        };
        let (mut first, mut second) = (names(0), names(1));
        assert_ne!(first, second);
        assert_eq!(first, names(0), "the same seed gives the same order");
        first.sort();
        second.sort();
        assert_eq!(first, second);
        assert_eq!(first.len(), scenario.rows.len() * scenario.targets.len() * scenario.workers.len());
    }

    #[test]
    fn rows_become_requests_with_credentials() {
        let scenario = scenario::read("api7").unwrap();
        let row = scenario.row("key-auth, 100 routes, 100 consumers").unwrap();
        let to = LoadDestination {
            address: SocketAddr::from(([127, 0, 0, 1], 9080)),
            tls: false,
            authority: None,
            events: None,
        };
        let level = LoadLevel { connections: 64, rate: None, workers: 1 };
        let plan = load(&scenario, row, level, &to, &pinning(&cpus(2, 1), 1, false), 7);
        assert_eq!(plan.requests.len(), 4);
        assert_eq!(plan.requests[3].url, "http://localhost:9080/route-99/get");
        assert_eq!(plan.requests[3].headers, [("apikey".to_owned(), "key-99".to_owned())]);
        assert_eq!((plan.connections, plan.threads), (64, 1));
    }

    #[test]
    fn every_websocket_client_sends_for_itself_and_one_publisher_for_all_subscribers() {
        let scenario = scenario::read("wso2-streaming").unwrap();
        let to = LoadDestination {
            address: SocketAddr::from(([127, 0, 0, 1], 9080)),
            tls: false,
            authority: None,
            events: None,
        };
        let level = LoadLevel { connections: 1000, rate: None, workers: 1 };
        let plan =
            |row: &str| load(&scenario, scenario.row(row).unwrap(), level, &to, &pinning(&cpus(2, 1), 1, false), 7);
        let rate = |rate| Pacing::Open { rate: Rate::Constant(rate), spacing: Spacing::Even };
        assert_eq!(plan("WebSocket, 10 messages/s").pacing, rate(10_000.0));
        assert_eq!(plan("WebSub, 8 kB").pacing, rate(0.2));
    }

    /// The engine's plan for a row of a scenario with this load.
    fn asked(load_keys: &str, row: &str) -> LoadPlan {
        let text = format!(
            "{{name: a, title: A, about: b, targets: [none], baseline: none, connections: [8], load: {load_keys}, \
             method: {{warmup_s: 1, measured_s: 4}}, rows: [{{name: r, {row}}}]}}"
        );
        let scenario = scenario::parse("a.yaml", &text).unwrap();
        let level = order(&scenario, 0, 1)[0][0].levels[0];
        let to = LoadDestination {
            address: SocketAddr::from(([127, 0, 0, 1], 9080)),
            tls: false,
            authority: None,
            events: None,
        };
        load(&scenario, &scenario.rows[0], level, &to, &pinning(&cpus(2, 1), 1, false), 7)
    }

    #[test]
    fn independent_users_come_at_random() {
        let plan = asked("{pacing: {kind: open, rate: {constant: 500}, spacing: poisson}}", "");
        assert_eq!(plan.pacing, Pacing::Open { rate: Rate::Constant(500.0), spacing: Spacing::Poisson });
    }

    #[test]
    fn a_rate_may_rise_in_steps() {
        let plan = asked(
            "{rate: 10}",
            "pacing: {kind: open, rate: {steps: [{rate: 100, for_ms: 2000}, {rate: 200.5, for_ms: 2000}]}}",
        );
        let steps = vec![RateStep { rate: 100.0, for_ms: 2_000 }, RateStep { rate: 200.5, for_ms: 2_000 }];
        assert_eq!(plan.pacing, Pacing::Open { rate: Rate::Steps(steps), spacing: Spacing::Even });
    }

    #[test]
    fn a_rate_may_rise_evenly() {
        let plan = asked("{}", "pacing: {kind: open, rate: {ramp: {from: 0, to: 1000, over_ms: 5000}}}");
        let rate = Rate::Ramp { from: 0.0, to: 1_000.0, over_ms: 5_000 };
        assert_eq!(plan.pacing, Pacing::Open { rate, spacing: Spacing::Even });
    }

    #[test]
    fn arrivals_may_be_those_of_another_day() {
        let plan = asked("{pacing: {kind: replay, at_ns: [0, 5, 1000000000]}}", "");
        assert_eq!(plan.pacing, Pacing::Replay { at_ns: vec![0, 5, 1_000_000_000] });
    }

    #[test]
    fn clients_may_think_for_a_time_of_chance() {
        let plan =
            asked("{pacing: {kind: closed, think: {exponential_ms: 20}, ramp_up_ms: 500}, keep_alive: false}", "");
        assert_eq!(plan.pacing, Pacing::Closed { think: Think::ExponentialMs(20.0), ramp_up_ms: 500 });
        assert!(!plan.keep_alive && !plan.tls.resume);
    }

    #[test]
    fn requests_may_be_made_of_data_and_depend_on_answers() {
        let plan = asked(
            "{cookies: true, data: {variables: {id: {sequence: {}}}}}",
            "selection: sequence, requests: [\
             {name: log in, path: '/in/${id}', check: [{status: [2xx]}], take: {token: {json: /token}}}, \
             {name: use, path: /use, headers: {X-Token: '${token}'}, follow_redirects: 2}]",
        );
        assert!(plan.is_flow() && plan.cookies);
        assert_eq!(plan.data.variables.keys().collect::<Vec<_>>(), ["id"]);
        let [log_in, used] = plan.requests.as_slice() else { panic!("{:?}", plan.requests) };
        assert_eq!((log_in.url.as_str(), log_in.check.len()), ("http://localhost:9080/in/${id}", 1));
        assert_eq!((log_in.take.len(), used.follow_redirects), (1, 2));
        let streams = asked("{data: {variables: {id: uuid}}}", "speak: {protocol: idle}");
        assert!(!streams.is_flow(), "only requests of HTTP are made of data");
    }

    #[test]
    fn requests_of_several_kinds_and_for_several_hosts_have_their_weights() {
        let plan = asked(
            "{}",
            "routes: 2, selection: sequence, requests: [{name: read, weight: 9}, \
             {name: write, method: POST, path: /items, host: b.example, body_bytes: 10, expect_status: [201]}]",
        );
        assert_eq!(plan.selection, Selection::Sequence);
        let seen: Vec<(&str, &str, u32)> =
            plan.requests.iter().map(|one| (one.label(), one.url.as_str(), one.weight)).collect();
        assert_eq!(seen[0], ("read", "http://localhost:9080/route-0/get", 9));
        assert_eq!(seen[3], ("write", "http://b.example:9080/route-1/items", 1));
        assert_eq!((seen.len(), plan.requests[1].expect_status.as_slice()), (4, &[201][..]));
    }
}
