//! A client of a running node's Admin API, for the commands that change its resources.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::resource_files;
use crate::exit::ExitCause;
use crate::say::say;
use bytes::Bytes;
use clap::Args;
use http::header::HOST;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::timeout;
use weir_client::{
    Authorities, CallError, CallSettings, HttpClient, HttpClientSettings, ServerVerification, ServiceUrl,
};
use weir_control::text::tree::TextPosition;

/// The most bytes of a response: a list of all routes of a large node.
const MOST_ANSWER: usize = 1 << 30;
/// The prefix of the address of a Unix socket.
pub(crate) const UNIX: &str = "unix:";
/// What the listeners of a gateway answer where there is no route.
const NO_ROUTE: &str = "404 Route Not Found";
/// What an Admin API answers for a list that it does not have.
const NO_LIST: &str = "Unsupported resource type";
/// How to give a key.
const KEY_ADVICE: &str = "set WEIR_ADMIN_KEY, or give a file with `--key-file`";
/// How the node begins to refuse what a viewer may not do. It is the text of Apache APISIX, for which its clients look.
const NOT_FOR_VIEWERS: &str = "invalid method for role viewer";
/// The longest time limit.
const MOST_TIMEOUT_S: u64 = 86_400;

/// The node, and the key for its Admin API.
#[derive(Debug, Clone, Args)]
pub(crate) struct AdminOptions {
    /// The URL of the node's Admin API, or `unix:` and the path of its Unix socket.
    #[arg(long, value_name = "URL", env = "WEIR_ADMIN", default_value = "http://127.0.0.1:9180")]
    server: String,
    #[command(flatten)]
    access: AdminAccess,
}

/// How a node lets this command in.
#[derive(Debug, Clone, Args)]
pub(crate) struct AdminAccess {
    /// A file with the Admin API key. Without this option the key is read from the environment variable WEIR_ADMIN_KEY.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// A PEM file with the CA certificate that the node's certificate is verified with.
    #[arg(long, alias = "cacert", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Does not verify the node's certificate.
    #[arg(long)]
    insecure: bool,
    /// How long to wait for each response, in seconds. A large transaction on a busy node may need more.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=MOST_TIMEOUT_S))]
    timeout: u64,
}

impl AdminAccess {
    /// With the key of the environment.
    pub(crate) fn with_key_of_environment(ca: Option<PathBuf>, insecure: bool, timeout: u64) -> AdminAccess {
        AdminAccess { key_file: None, ca, insecure, timeout }
    }
}

/// The connection to a node.
pub(crate) struct AdminClient {
    server: String,
    /// What names the server in the command line.
    named_by: &'static str,
    key: String,
    http: HttpClient,
    settings: CallSettings,
    runtime: tokio::runtime::Runtime,
}

/// The file and the position of what has a path such as `routes/r: uri`, if it is written in a file.
pub(crate) type PlaceOf<'p> = dyn Fn(&str) -> Option<(Arc<str>, TextPosition)> + 'p;

/// A successful response.
#[derive(Debug)]
pub(crate) struct AdminAnswer {
    pub status: StatusCode,
    pub body: Value,
}

/// A list, and the answer that it was in.
pub(crate) struct AdminList {
    pub items: Vec<Value>,
    pub answer: Value,
}

/// Those of a PEM file, or of the system.
///
/// # Errors
/// The file cannot be read, or has no certificates.
pub(crate) fn authorities(file: Option<&Path>) -> Result<Authorities, String> {
    let Some(path) = file else { return Ok(Authorities::System) };
    let text = std::fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let certificates = weir_net::tls::certificates(&text);
    Ok(Authorities::Own(certificates.map_err(|error| format!("{}: {error}", path.display()))?.into()))
}

impl AdminClient {
    /// # Errors
    /// What is wrong with the options.
    pub(crate) fn new(options: &AdminOptions) -> Result<AdminClient, ExitCause> {
        AdminClient::at(&options.server, "`--server`, or WEIR_ADMIN,", &options.access)
    }

    /// The node with this URL, which `named_by` has in the command line.
    ///
    /// # Errors
    /// What is wrong with the options.
    pub(crate) fn at(server: &str, named_by: &'static str, options: &AdminAccess) -> Result<AdminClient, ExitCause> {
        if !["http://", "https://", UNIX].iter().any(|scheme| server.starts_with(scheme)) {
            let problem = "is not the address of an Admin API; write it as `http://127.0.0.1:9180`, or as `unix:PATH`";
            return Err(ExitCause::local(format!("`{server}` {problem}")));
        }
        let key = match &options.key_file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| ExitCause::local(format!("{} cannot be read: {error}", path.display())))?,
            None => std::env::var("WEIR_ADMIN_KEY").unwrap_or_default(),
        };
        // Whether a node asks for a key on its Unix socket is known to the node.
        if key.trim().is_empty() && !server.starts_with(UNIX) {
            return Err(ExitCause::local(format!("no Admin API key: {KEY_ADVICE}")));
        }
        let authorities = authorities(options.ca.as_deref()).map_err(ExitCause::local)?;
        let verification = if options.insecure { ServerVerification::Skip } else { ServerVerification::Verify };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let patience = Duration::from_secs(options.timeout);
        Ok(AdminClient {
            named_by,
            server: server.trim_end_matches('/').to_owned(),
            key: key.trim().to_owned(),
            http: HttpClient::new(HttpClientSettings { authorities, ..HttpClientSettings::default() }),
            settings: CallSettings {
                verification,
                max_content_bytes: MOST_ANSWER,
                timeout: patience,
                ..CallSettings::default()
            },
            runtime: runtime.map_err(|error| format!("the async runtime cannot be started: {error}"))?,
        })
    }

    /// Sends a request for a path below `/apisix/admin/`, or for an absolute path, with additional header fields.
    ///
    /// # Errors
    /// Why the request failed, one line per fault.
    pub(crate) fn ask(
        &self,
        method: Method,
        path: &str,
        fields: &[(&str, Option<&str>)],
        body: Option<&Value>,
    ) -> Result<AdminAnswer, String> {
        self.ask_about(&|_| None, method, path, fields, body)
    }

    /// Like [`AdminClient::ask`] with what is written in files, in which faults have places.
    ///
    /// # Errors
    /// Like [`AdminClient::ask`].
    pub(crate) fn ask_about(
        &self,
        place_of: &PlaceOf,
        method: Method,
        path: &str,
        fields: &[(&str, Option<&str>)],
        body: Option<&Value>,
    ) -> Result<AdminAnswer, String> {
        let (status, body) = self.answer(method, path, fields, body)?;
        if status.is_success() {
            return Ok(AdminAnswer { status, body });
        }
        Err(self.refusal(status, &body, place_of))
    }

    /// Fetches a path; `None` if it does not exist.
    ///
    /// # Errors
    /// Like [`AdminClient::ask`].
    pub(crate) fn find(&self, path: &str) -> Result<Option<Value>, String> {
        match self.answer(Method::GET, path, &[], None)? {
            (status, body) if status.is_success() => Ok(Some(body)),
            (StatusCode::NOT_FOUND, body) if body["message"] == "Key not found" => Ok(None),
            (status, body) => Err(self.refusal(status, &body, &|_| None)),
        }
    }

    /// Fetches a path whose answer has the member `list`.
    ///
    /// # Errors
    /// Like [`AdminClient::ask`], and if another program answers.
    pub(crate) fn list(&self, path: &str) -> Result<AdminList, String> {
        let mut answer = self.ask(Method::GET, path, &[], None)?.body;
        match answer["list"].take() {
            Value::Array(items) => Ok(AdminList { items, answer }),
            _ => Err(self.is_foreign()),
        }
    }

    /// What is told of an answer that no Admin API gives.
    pub(crate) fn is_foreign(&self) -> String {
        let AdminClient { server, named_by, .. } = self;
        format!(
            "the answer of {server} is not one of Weir's Admin API; {named_by} is the setting `admin.listen` of the node"
        )
    }

    fn answer(
        &self,
        method: Method,
        path: &str,
        fields: &[(&str, Option<&str>)],
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), String> {
        let target = match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("/apisix/admin/{path}"),
        };
        let mut request = Request::builder().method(method).header("X-API-KEY", &self.key);
        for (name, value) in fields {
            if let Some(value) = value {
                request = request.header(*name, *value);
            }
        }
        let content = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let not_built = |error: http::Error| format!("the request cannot be built: {error}");
        let answer = match self.server.strip_prefix(UNIX) {
            Some(socket) => {
                let request = request.uri(target).header(HOST, "localhost");
                let request = request.body(Full::new(content)).map_err(not_built)?;
                let patience = self.settings.timeout;
                let calling = async { timeout(patience, call_by_socket(Path::new(socket), request)).await };
                match self.runtime.block_on(calling) {
                    Ok(answer) => answer.map_err(|error| self.is_silent(&*error))?,
                    Err(_) => return Err(self.timed_out()),
                }
            }
            None => {
                let url = format!("{}{target}", self.server);
                let url = ServiceUrl::parse(&url).map_err(|error| format!("{url}: {error}"))?;
                let request = request.uri(url.target().as_str()).body(content).map_err(not_built)?;
                let answer = self.runtime.block_on(self.http.call(&url, request, &self.settings));
                answer.map_err(|error| match error {
                    CallError::AnswerTimedOut { .. } => self.timed_out(),
                    error => self.is_silent(&error),
                })?
            }
        };
        let body = serde_json::from_slice(answer.body());
        Ok((answer.status(), body.unwrap_or_else(|_| String::from_utf8_lossy(answer.body()).into_owned().into())))
    }
}

impl AdminClient {
    /// The time limit of each request.
    pub(crate) fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// What is told of an answer that is no success.
    fn refusal(&self, status: StatusCode, body: &Value, place_of: &PlaceOf) -> String {
        // Another address of a node, or another program, has no path of the Admin API.
        let has_no_path = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED].contains(&status);
        if has_no_path && (!body.is_object() || body["error_msg"] == NO_ROUTE) {
            return format!("{} ({status})", self.is_foreign());
        }
        refusal(status, body, place_of)
    }

    /// What is told of a node that cannot be reached.
    fn is_silent(&self, error: &(dyn Error + 'static)) -> String {
        let AdminClient { server, named_by, .. } = self;
        format!("no response from {server}: {error}; {named_by} is the setting `admin.listen` of the node")
    }

    fn timed_out(&self) -> String {
        format!(
            "no response from {} within {} s; a change may still be made: look at `weir history`, and give more time with \
             `--timeout`",
            self.server,
            self.settings.timeout.as_secs()
        )
    }
}

/// Sends a request over a Unix socket, on a new connection.
async fn call_by_socket(
    socket: &Path,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, Box<dyn Error + Send + Sync>> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let content = Limited::new(body, MOST_ANSWER).collect().await?.to_bytes();
    connection.abort();
    Ok(Response::from_parts(head, content))
}

/// The faults in an error response.
fn refusal(status: StatusCode, body: &Value, place_of: &PlaceOf) -> String {
    let faults = body["diagnostics"].as_array().into_iter().flatten();
    let listed: Vec<String> = faults.map(|fault| diagnostic(fault, place_of)).collect();
    if !listed.is_empty() {
        return listed.join("\n");
    }
    let told =
        body["error_msg"].as_str().or(body["message"].as_str()).unwrap_or_else(|| body.as_str().unwrap_or_default());
    let told = match body["description"].as_str() {
        Some(description) => format!("{told}: {description} ({status})"),
        None => format!("{told} ({status})"),
    };
    // The role is no matter of which key was given.
    let is_of_role = body["description"].as_str().is_some_and(|text| text.starts_with(NOT_FOR_VIEWERS));
    if told.starts_with(NO_LIST) {
        let lists: Vec<&str> = resource_files::lists().collect();
        return format!("{told}; the lists are {}", lists.join(", "));
    }
    if status == StatusCode::UNAUTHORIZED && !is_of_role { format!("{told}; {KEY_ADVICE}") } else { told }
}

/// What a change that was made or tried has `warnings` about, one line for each.
pub(crate) fn warnings(body: &Value) -> Vec<String> {
    placed_warnings(body, &|_| None)
}

/// The same about what is written in files.
pub(crate) fn placed_warnings(body: &Value, place_of: &PlaceOf) -> Vec<String> {
    let findings = body["warnings"].as_array().into_iter().flatten();
    let mut lines: Vec<String> = findings.map(|finding| diagnostic(finding, place_of)).collect();
    if let Some(more) = body["warnings_more"].as_u64() {
        lines.push(format!("{more} more"));
    }
    lines
}

/// Says what a change that was made has `warnings` about.
pub(crate) fn say_warnings(body: &Value) {
    warnings(body).iter().for_each(|warning| say!("warning: {warning}"));
}

fn diagnostic(fault: &Value, place_of: &PlaceOf) -> String {
    let text = |name: &str| fault[name].as_str().unwrap_or_default();
    let place = match place_of(text("path")) {
        Some((source, TextPosition { line, column })) => format!("{source}:{line}:{column}: "),
        None => String::new(),
    };
    match fault["advice"].as_str() {
        Some(advice) => format!("{place}{}: {}; {advice}", text("path"), text("problem")),
        None => format!("{place}{}: {}", text("path"), text("problem")),
    }
}
