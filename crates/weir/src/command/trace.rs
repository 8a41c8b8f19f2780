//! `weir trace`: sends a request to a running node, and shows how it was handled.

use std::fmt::Write as _;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{HeaderName, HeaderValue, Method, Request};
use serde_json::Value;
use weir_client::{CallError, CallSettings, HttpClient, HttpClientSettings, ServerVerification, ServiceUrl, UrlError};
use weir_gateway::tail::TRACE_FIELD;
use weir_net::handshake::is_unknown_name;

use crate::command::admin_client::authorities;
use crate::command::status_stream::ExchangeStream;
use crate::exit::ExitFailure;
use crate::say::{self, say};

/// How long to wait for the node's report after the response.
const PATIENCE: Duration = Duration::from_secs(5);
const MOST_CONTENT: usize = 1 << 30;
/// How long the response may take: longer than the time-outs of a node, so that what ends the request is what ends that of a client.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Sends a request to a running node, and shows how it was processed: route, plugins and upstream, each with its time.
///
/// The node recognises the request by a random value in the header field `X-Weir-Trace`, and reports at its status address,
/// which answers only on the same machine.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct TraceCommand {
    /// The method of the request, as for `weir explain`. Without one it is GET
    method: Option<String>,
    /// The URL of the request, at an address of the node
    url: String,
    /// The method, as for curl
    #[arg(short = 'X', long = "request", value_name = "METHOD", conflicts_with = "method")]
    request: Option<Method>,
    /// A header field of the request, as `Name: value`, also `Host`. Can be given several times
    #[arg(short = 'H', long = "header", value_name = "FIELD", value_parser = field)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The body of the request
    #[arg(short = 'd', long, value_name = "TEXT", default_value = "")]
    data: String,
    /// Connects to this address instead of the host of the URL: to one node behind a load balancer, or by a name that DNS does not know
    #[arg(long, value_name = "HOST:PORT")]
    connect_to: Option<String>,
    /// A PEM file with the CA certificate that the node's certificate is verified with
    #[arg(long, alias = "cacert", value_name = "FILE", conflicts_with = "insecure")]
    ca: Option<PathBuf>,
    /// Does not verify the node's certificate
    #[arg(short = 'k', long)]
    insecure: bool,
    /// The node's status address, on this machine
    #[arg(long, value_name = "ADDRESS", env = "WEIR_STATUS", default_value = "127.0.0.1:7085")]
    status: String,
    /// Prints the report of the node as a JSON object
    #[arg(long)]
    json: bool,
}

fn field(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write it as `Name: value`")?;
    let name: HeaderName = name.trim().parse().map_err(|error| format!("`{name}`: {error}"))?;
    if name.as_str().eq_ignore_ascii_case(TRACE_FIELD) {
        return Err(format!("`{name}` names the trace, and this command sets it; leave it out"));
    }
    let value = value.trim().parse().map_err(|error| format!("the value: {error}"))?;
    Ok((name, value))
}

impl TraceCommand {
    pub(crate) fn execute(self) -> ExitCode {
        let (method, url) = match self.method_and_url() {
            Ok(request) => request,
            Err(problem) => {
                say!("{problem}");
                return ExitFailure::Configuration.into();
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let traced = match runtime {
            Ok(runtime) => runtime.block_on(self.trace(method, url)),
            Err(error) => Err(format!("the async runtime cannot be started: {error}")),
        };
        match traced {
            Ok(exchange) if self.json => say::print(format!("{exchange:#}\n").as_bytes()),
            Ok(exchange) => say::print(way(&exchange, port(&self.url)).as_bytes()),
            Err(problem) => {
                say!("{problem}");
                ExitFailure::Refused.into()
            }
        }
    }

    /// The request's method, which may stand before its URL or in an option.
    fn method_and_url(&self) -> Result<(Method, ServiceUrl), String> {
        let url = &self.url;
        let method = match &self.method {
            Some(method) => method.parse().map_err(|_| format!("`{method}` is not a method; write `GET {url}`"))?,
            None => self.request.clone().unwrap_or_default(),
        };
        let url = ServiceUrl::parse(url).map_err(|error| match error {
            UrlError::Syntax => {
                format!("`{url}` is not a URL at an address of the node, such as `http://127.0.0.1:9080/orders`")
            }
            error => format!("{url}: {error}"),
        })?;
        Ok((method, url))
    }

    async fn trace(&self, method: Method, url: ServiceUrl) -> Result<Value, String> {
        let asked = self.url.as_str();
        let mut random = [0; 16];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| "the system gives no random numbers".to_owned())?;
        let name = hex::encode(random);
        let mut stream = ExchangeStream::open(&self.status, Some(("trace", &name)), PATIENCE).await?;
        let mut request = Request::builder().method(method).uri(url.target().as_str());
        for (field, value) in &self.headers {
            request = request.header(field, value);
        }
        let request = request.header(TRACE_FIELD, &name).body(Bytes::from(self.data.clone()));
        let request = request.map_err(|error| format!("the request cannot be built: {error}"))?;
        let verification = if self.insecure { ServerVerification::Skip } else { ServerVerification::Verify };
        let settings =
            CallSettings { verification, max_content_bytes: MOST_CONTENT, timeout: LONGEST, ..CallSettings::default() };
        let authorities = authorities(self.ca.as_deref())?;
        let connect_to = self.connect_to.as_deref().map(address).transpose()?;
        let client = HttpClient::new(HttpClientSettings { authorities, connect_to, ..HttpClientSettings::default() });
        let answered = client.call(&url, request, &settings).await;
        match stream.next().await {
            Ok(Some(exchange)) => Ok(exchange),
            told => {
                // A request that did not reach the node has one cause, and neither the stream nor its address is it.
                let answer = match answered {
                    Ok(answer) => format!("the answer was {}", answer.status()),
                    Err(error) => return Err(format!("{asked}: {error}{}", self.advice(asked, &error))),
                };
                let why = told.err().unwrap_or_else(|| "the node has ended the stream".to_owned());
                Err(format!(
                    "the node of {} has not seen the request: {answer}; {why}; `--status` must be that of the node at the URL",
                    self.status
                ))
            }
        }
    }
}

impl TraceCommand {
    /// What to know if the node could not be reached.
    fn advice(&self, url: &str, error: &CallError) -> &'static str {
        let has_host = self.headers.iter().any(|(name, _)| name == http::header::HOST);
        // A name that no entry of `ssls` has, such as the address in the URL.
        let is_unknown_name = matches!(error, CallError::Tls { error, .. } if is_unknown_name(error));
        match is_unknown_name || has_host && url.starts_with("https:") {
            true => {
                "; the name in the TLS handshake is that of the URL, whatever `Host` says: write the name there, and the address of \
                 the node as `--connect-to`"
            }
            false => "",
        }
    }
}

/// The first address of a host and a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().map(|mut addresses| addresses.next());
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(format!("--connect-to: `{text}` has no address")),
        Err(error) => Err(format!("--connect-to: `{text}`: {error}; write it as `127.0.0.1:8443`")),
    }
}

/// The port in a URL.
fn port(url: &str) -> Option<u16> {
    url.parse::<http::Uri>().ok()?.port_u16()
}

/// A time of a plugin.
fn duration(us: f64) -> String {
    match us {
        1e6.. => format!("{:.3} s ", us / 1e6),
        1e3.. => format!("{:.1} ms", us / 1e3),
        _ => format!("{us:.1} µs"),
    }
}

/// The stages of the request, one line each. `port` is that of its URL.
fn way(exchange: &Value, port: Option<u16>) -> String {
    let text = |name: &str| exchange[name].as_str().filter(|text| !matches!(*text, "" | "-"));
    // From the beginning of each attempt.
    let after = |name: &str| {
        text(name).map(|seconds| {
            let attempts = seconds.split(',').map(|part| part.trim().parse::<f64>().map(|seconds| seconds * 1e3));
            let attempts: Vec<String> =
                attempts.map(|ms| ms.map_or("-".into(), |ms| format!("after {ms:.0} ms"))).collect();
            attempts.join(", ")
        })
    };
    let mut out = format!(
        "{} {}://{}{}{} {}\n",
        text("method").unwrap_or("-"),
        text("scheme").unwrap_or("-"),
        text("host").unwrap_or_default(),
        port.map(|port| format!(":{port}")).unwrap_or_default(),
        text("uri").unwrap_or_default(),
        text("protocol").unwrap_or_default()
    );
    let mut line = |label: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a string does not fail.
            let _ = writeln!(out, "  {label:<18} {value}");
        }
    };
    line("request id", text("request_id").map(str::to_owned));
    line("route", Some(text("route_id").unwrap_or("none matches; `weir explain` says why").to_owned()));
    line("service", text("service_id").map(str::to_owned));
    for turn in exchange["plugins"].as_array().into_iter().flatten() {
        let name = turn["name"].as_str().unwrap_or_default();
        let time = duration(turn["us"].as_f64().unwrap_or_default());
        line(turn["phase"].as_str().unwrap_or_default(), Some(format!("{name:<24} {time:>12}")));
    }
    line("consumer", text("consumer").map(str::to_owned));
    // A plugin may as well give the answer that is wanted.
    let is_refusal = exchange["status"].as_u64().is_none_or(|status| status >= 400);
    line(if is_refusal { "refused by" } else { "answered by" }, text("refused_by").map(str::to_owned));
    line("cause", text("error_cause").map(str::to_owned));
    line("upstream", text("upstream_addr").map(str::to_owned));
    line("upstream uri", text("upstream_addr").and_then(|_| text("upstream_uri")).map(str::to_owned));
    line("upstream error", text("upstream_error").map(str::to_owned));
    let queued = after("upstream_queue_time").map(|times| times.replace("after ", ""));
    line("attempt queued", queued.filter(|times| times.contains(|digit| ('1'..='9').contains(&digit))));
    line("attempt began", after("upstream_start_time"));
    line("attempt connected", after("upstream_connect_time"));
    line("attempt head", after("upstream_header_time"));
    line("attempt complete", after("upstream_response_time"));
    line("upstream status", text("upstream_status").map(str::to_owned));
    line("status", Some(exchange["status"].to_string()));
    line("time", exchange["request_time"].as_f64().map(|seconds| format!("{:.0} ms", seconds * 1e3)));
    line("bytes", Some(format!("{} in, {} out", exchange["bytes_received"], exchange["bytes_sent"])));
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_way_shows_what_there_is() {
        let exchange = json!({
            "method": "GET", "scheme": "http", "host": "a", "uri": "/x", "protocol": "HTTP/1.1", "status": 200,
            "request_time": 0.012, "route_id": "orders", "upstream_addr": "127.0.0.1:1, 127.0.0.1:2",
            "upstream_error": "Connection refused (os error 111), -", "upstream_connect_time": "-, 0.001", "upstream_queue_time": "0.000, 0.440", "upstream_start_time": "0.002, 0.450", "bytes_received": 10, "bytes_sent": 20, "consumer": "-",
            "plugins": [{"name": "key-auth", "phase": "request", "us": 3.25}],
        });
        let shown = way(&exchange, port("http://127.0.0.1:9080/x"));
        for line in [
            "GET http://a:9080/x HTTP/1.1\n",
            "  route              orders\n",
            "  request            key-auth                       3.2 µs\n",
            "  upstream error     Connection refused (os error 111), -\n",
            "  attempt queued     0 ms, 440 ms\n",
            "  attempt began      after 2 ms, after 450 ms\n",
            "  attempt connected  -, after 1 ms\n",
            "  bytes              10 in, 20 out\n",
        ] {
            assert!(shown.contains(line), "{line:?} in\n{shown}");
        }
        assert!(!shown.contains("consumer"), "{shown}");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        let times = [57.63, 999.9, 1_000.0, 300_991.3, 2_500_000.0].map(duration);
        assert_eq!(times, ["57.6 µs", "999.9 µs", "1.0 ms", "301.0 ms", "2.500 s "]);
    }

    #[test]
    fn an_url_without_a_port_shows_none() {
        assert_eq!(port("https://a.example/x"), None);
        assert_eq!(port("http://[::1]:9080/x"), Some(9080));
    }

    #[test]
    fn the_method_stands_before_the_url_or_in_an_option() {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            trace: TraceCommand,
        }
        let parsed = |arguments: &[&str]| <Program as clap::Parser>::try_parse_from([&["weir"], arguments].concat());
        let told = |arguments: &[&str]| {
            let program = parsed(arguments).expect("arguments");
            program.trace.method_and_url().map(|(method, _)| format!("{method} {}", program.trace.url))
        };
        assert_eq!(told(&["http://a/"]), Ok("GET http://a/".to_owned()));
        assert_eq!(told(&["PUT", "http://a/"]), Ok("PUT http://a/".to_owned()));
        assert_eq!(told(&["-X", "PUT", "http://a/"]), Ok("PUT http://a/".to_owned()));
        let twice = parsed(&["-X", "PUT", "GET", "http://a/"]).err().expect("the method is given twice");
        assert_eq!(twice.kind(), clap::error::ErrorKind::ArgumentConflict);
        assert!(told(&["P UT", "http://a/"]).is_err_and(|problem| problem.contains("`P UT` is not a method")));
    }

    #[test]
    fn fields_have_a_name_and_a_value() {
        assert!(field("Host: a.example").is_ok_and(|(name, value)| name == "host" && value == "a.example"));
        assert!(field("Host").is_err() && field("a b: c").is_err());
    }
}
