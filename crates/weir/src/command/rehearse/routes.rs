//! Which route of the new gateway a request takes, as a configuration file or a running node says.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use weir_control::DocumentLoader;
use weir_control::document::CompleteDocument;
use weir_control::explain::{DocumentRouting, RequestDescription};
use weir_rehearsal::{ExampleRequest, RehearsalFindings, RehearsalReport};

use super::RehearseCommand;
use crate::command::admin_client::{AdminAccess, AdminClient};
use crate::command::explain::running;
use crate::node::PLUGINS;

/// The most requests that a node is asked about.
const MOST_QUESTIONS: usize = 1000;

/// Asks for the route of a request. `None` for a request that is malformed.
type AskedRoute<'a> = Box<dyn Fn(&RequestDescription) -> Result<Option<String>, String> + 'a>;

pub(super) enum ExplainedRoutes {
    File(Box<CompleteDocument>),
    Node(Box<AdminClient>),
}

impl ExplainedRoutes {
    /// # Errors
    /// The file is not valid, or there is no key for the node.
    pub(super) fn open(source: &Path, options: &RehearseCommand) -> Result<ExplainedRoutes, String> {
        if let Some(server) = running::server(source) {
            let access =
                AdminAccess::with_key_of_environment(options.admin_ca.clone(), options.admin_insecure, options.timeout);
            let node = AdminClient::at(server, "`--explain`", &access).map_err(|cause| cause.problem)?;
            let first = RequestDescription {
                method: "GET".to_owned(),
                url: "http://localhost/".to_owned(),
                headers: Vec::new(),
                from: IpAddr::V4(Ipv4Addr::LOCALHOST),
                server_name: None,
            };
            // A node that cannot be asked is told before requests are sent for nothing.
            running::explanation_of(&node, &first, serde_json::Map::new()).map_err(|cause| cause.problem)?;
            return Ok(ExplainedRoutes::Node(Box::new(node)));
        }
        let told = |faults: Vec<weir_control::Diagnostic>| {
            faults.iter().map(ToString::to_string).collect::<Vec<String>>().join("\n")
        };
        let document = DocumentLoader::of_file_directly(source).read().map_err(told)?.document;
        DocumentRouting::of(&document, &PLUGINS).map_err(told)?;
        Ok(ExplainedRoutes::File(Box::new(document)))
    }

    /// The report with the routes of its examples, and why some have none. `new` is whether the new gateway is asked over TLS, and its
    /// port.
    pub(super) fn report(self, findings: RehearsalFindings, new: (bool, u16)) -> (RehearsalReport, Option<String>) {
        let mut known: HashMap<String, Option<String>> = HashMap::new();
        let mut fault = None;
        let asked: AskedRoute<'_> = match &self {
            ExplainedRoutes::File(document) => match DocumentRouting::of(document, &PLUGINS) {
                Ok(routing) => Box::new(move |question| {
                    Ok(routing.outcome(question).ok().map(|outcome| told(outcome.route.as_deref())))
                }),
                Err(_) => Box::new(|_| Err("the configuration file is not valid".to_owned())),
            },
            ExplainedRoutes::Node(node) => Box::new(|question| {
                let fields = running::fields(&question.headers)?;
                let explanation = running::explanation_of(node, question, fields).map_err(|cause| cause.problem)?;
                Ok(Some(told(explanation.route.as_deref())))
            }),
        };
        let report = RehearsalReport::of(findings, &mut |example| {
            let question = question(example, new);
            let name = format!("{question:?}");
            if fault.is_some() || known.len() >= MOST_QUESTIONS && !known.contains_key(&name) {
                return None;
            }
            let ask = || {
                asked(&question).unwrap_or_else(|problem| {
                    fault = Some(problem);
                    None
                })
            };
            known.entry(name).or_insert_with(ask).clone()
        });
        (report, fault)
    }
}

fn told(route: Option<&str>) -> String {
    route.map_or("no route".to_owned(), |route| format!("route {route}"))
}

fn question(example: &ExampleRequest, (is_https, port): (bool, u16)) -> RequestDescription {
    let ExampleRequest { method, host, target, fields, client } = example;
    let scheme = if is_https { "https" } else { "http" };
    // The port is the one that the new gateway is asked at, whichever the log has.
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let mut headers = fields.clone();
    headers.push(format!("Host: {host}"));
    RequestDescription {
        method: method.clone(),
        url: format!("{scheme}://{name}:{port}{target}"),
        headers,
        from: client.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        server_name: None,
    }
}
