use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use weir_control::DocumentLoader;
use weir_control::document::{AdminAddress, Document};
use weir_control::explain::{
    ConnectionDescription, Explanation, RequestDescription, Unexplained, explain, explain_connection,
};
use weir_gateway::snapshot::Transport;

use super::admin_client::AdminAccess;
use super::resources::ended;
use crate::exit::{self, ExitFailure};
use crate::node::PLUGINS;
use crate::say::{self, say};

mod calibrated;
pub(crate) mod running;

/// Explains how a request is routed: the candidate routes, why all but one are rejected, and the plugins that run.
///
/// No request is sent. `weir explain weir.yaml GET https://shop.example/orders/1 -H "X-Tenant: a"`
///
/// The URL of a node's Admin API in place of a file asks about the resources that this node serves: `weir explain http://127.0.0.1:9180 GET /orders`
///
/// With `TCP` in place of a method it explains which stream route takes a connection, and with `UDP` which one takes a datagram:
/// `weir explain weir.yaml TCP 10.0.0.5:5432 --from 10.1.2.3`
///
/// The cost of each plugin is shown. By default this is a calibrated number of instructions that a typical configuration of the
/// plugin adds to a request, measured on 2026-11-22 (docs/reference/prices.md). With `--status` it is the cost measured in a running gateway.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct Explain {
    /// The configuration file; or the URL of the Admin API of a running node, or `unix:` and the path of its Unix socket.
    file: PathBuf,
    /// The method of the request; `TCP` for a connection without HTTP, `UDP` for a datagram.
    #[arg(default_value = "GET")]
    method: String,
    /// The URL of the request. A path alone is one of `http://localhost`; `-H "Host: NAME"` names another host. With `TCP` and `UDP`: the address
    /// and port that the client uses, as `10.0.0.5:5432` or `:5432`.
    url: String,
    /// A header field of the request, as `Name: value`. Can be given several times.
    #[arg(short = 'H', long = "header", value_name = "FIELD")]
    headers: Vec<String>,
    /// The IP address of the client.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    from: IpAddr,
    /// The server name in the TLS handshake: of an https URL, if it is not its host, and with `TCP`.
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// The status address of a gateway that runs this file: shows the cost of each plugin as measured there.
    #[arg(long, value_name = "ADDRESS")]
    status: Option<SocketAddr>,
    #[command(flatten)]
    access: AdminAccess,
}

/// Whether a text has nothing of a URL: it is then more often a path without its slash than a host.
fn is_word(url: &str) -> bool {
    !url.contains(['/', '.', ':', '?']) && url != "localhost"
}

/// Says what is wrong with the command: no node was asked.
fn misused(problem: &str) -> ExitCode {
    say!("{problem}");
    ExitFailure::Configuration.into()
}

/// What to ask in place of a file without resources, whose node has them in a store: no route would ever match.
fn elsewhere(document: &Document) -> Option<String> {
    document.settings.store.as_ref()?;
    let admin = document.settings.admin.as_ref();
    let server = match admin.map(|admin| &admin.listen) {
        Some(AdminAddress::Tcp(address)) if admin.is_some_and(|admin| admin.tls.is_some()) => {
            format!("https://{address}")
        }
        Some(AdminAddress::Tcp(address)) => format!("http://{address}"),
        Some(AdminAddress::Unix(socket)) => format!("unix:{}", socket.display()),
        None => "URL".to_owned(),
    };
    Some(format!(
        "the resources of this node are in its store, not in this file; ask the node: `weir explain {server} …`, or a file that \
         `weir store export` has written"
    ))
}

impl Explain {
    pub(crate) fn execute(self) -> ExitCode {
        let transport = match &*self.method.to_ascii_uppercase() {
            "TCP" => Some(Transport::Tcp),
            "UDP" => Some(Transport::Udp),
            _ => None,
        };
        let server = running::server(&self.file);
        if let Some(transport) = transport {
            return match server {
                Some(_) => misused("a connection is explained by a file only"),
                None => self.connection(transport),
            };
        }
        if is_word(&self.url) {
            return misused(&format!("`{0}` is neither a path nor a URL; write `/{0}` or `http://{0}/`", self.url));
        }
        let question = RequestDescription {
            method: self.method.clone(),
            url: self.url.clone(),
            headers: self.headers.clone(),
            from: self.from,
            server_name: self.sni.clone(),
        };
        if let Some(server) = server {
            let headers = match running::fields(&self.headers) {
                Ok(headers) => headers,
                Err(problem) => return misused(&problem),
            };
            return match running::explanation(server, &self.access, &question, headers) {
                Ok(explanation) => self.tell(explanation),
                Err(problem) => ended(Err(problem)),
            };
        }
        let loaded = DocumentLoader::of_file_directly(&self.file).read().map_err(Unexplained::Document);
        if let Ok(loaded) = &loaded
            && let Some(problem) = elsewhere(&loaded.document)
        {
            return misused(&problem);
        }
        let explained = loaded.and_then(|loaded| explain(&loaded.document, &PLUGINS, &question));
        match explained {
            Ok(explanation) => return self.tell(explanation),
            Err(Unexplained::Document(faults)) => faults.iter().for_each(|fault| say!("{fault}")),
            Err(Unexplained::Request(problem)) => say!("{problem}"),
        }
        ExitFailure::Configuration.into()
    }

    fn tell(&self, mut explanation: Explanation) -> ExitCode {
        let measured = match self.status {
            None => HashMap::new(),
            Some(status) => match prices(status, explanation.route.as_deref()) {
                Ok(prices) => prices,
                Err(error) => {
                    say!("reading the measured costs of plugins from {status} failed: {error}");
                    return ExitFailure::System.into();
                }
            },
        };
        explanation.tell_prices(|plugin| match measured.get(plugin) {
            Some(price) => price.clone(),
            None if self.status.is_some() => format!("not measured yet; {}", calibrated::price(plugin)),
            None => calibrated::price(plugin),
        });
        say::print(explanation.to_string().as_bytes())
    }
}

impl Explain {
    /// Explains a connection without HTTP, or a datagram.
    fn connection(&self, transport: Transport) -> ExitCode {
        let to = match self.url.strip_prefix(':') {
            Some(port) => port.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
            None => self.url.parse().ok(),
        };
        let Some(to) = to else {
            say!("`{}` is not an address: write it as `10.0.0.5:5432` or `:5432`", self.url);
            return ExitFailure::Configuration.into();
        };
        let question = ConnectionDescription { transport, to, from: self.from, server_name: self.sni.clone() };
        let loaded = DocumentLoader::of_file_directly(&self.file).read();
        if let Ok(loaded) = &loaded
            && let Some(problem) = elsewhere(&loaded.document)
        {
            return misused(&problem);
        }
        let explained = loaded.and_then(|loaded| explain_connection(&loaded.document, &PLUGINS, &question));
        match explained {
            Ok(explanation) => {
                // A closed pipe is not a failure.
                let _ = write!(io::stdout(), "{explanation}");
                exit::DONE
            }
            Err(faults) => {
                faults.iter().for_each(|fault| say!("{fault}"));
                ExitFailure::Configuration.into()
            }
        }
    }
}

/// The time limit of a request to the status address.
const PATIENCE: Duration = Duration::from_secs(5);

/// The measured costs of the plugins on a route, by name, in words.
fn prices(status: SocketAddr, route: Option<&str>) -> io::Result<HashMap<String, String>> {
    let mut stream = TcpStream::connect_timeout(&status, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET /policies HTTP/1.1\r\nHost: {status}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let report: Value = serde_json::from_str(body).map_err(io::Error::other)?;
    let routes = report["routes"].as_array().into_iter().flatten();
    let policies = routes.filter(|of| of["route"].as_str() == route).filter_map(|of| of["policies"].as_array());
    Ok(policies.flatten().filter_map(measured).collect())
}

/// The name of a plugin and its measured cost; `None` if no call was measured yet, so that the calibrated cost is shown.
fn measured(price: &Value) -> Option<(String, String)> {
    price["calls_measured"].as_u64().filter(|calls| *calls > 0)?;
    Some((price["policy"].as_str()?.to_owned(), in_words(price)))
}

fn in_words(price: &Value) -> String {
    let number = |name: &str| price[name].as_f64().unwrap_or_default();
    let mut text = format!(
        "{:.2} µs of processor time per call, {:.1} % of the processor time of the route",
        number("cpu_ns_per_call") / 1e3,
        number("share_of_route_cpu") * 100.0
    );
    let waited_us = number("waited_ns_per_call") / 1e3;
    if waited_us > 0.0 {
        text.push_str(&format!(", and {waited_us:.0} µs of waiting per call"));
    }
    let held_bytes = number("held_bytes");
    if held_bytes > 0.0 {
        text.push_str(&format!(", {held_bytes} bytes buffered in total"));
    }
    format!("{text} ({} calls measured)", number("calls_measured"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plugin_without_a_measured_call_has_no_measured_cost() {
        let price = |calls: u64| json!({"policy": "key-auth", "calls_measured": calls, "cpu_ns_per_call": 500.0});
        assert!(measured(&price(0)).is_none());
        let (name, words) = measured(&price(2)).expect("two calls were measured");
        assert_eq!(name, "key-auth");
        assert!(
            words.starts_with("0.50 µs of processor time per call") && words.ends_with("(2 calls measured)"),
            "{words}"
        );
    }
}
