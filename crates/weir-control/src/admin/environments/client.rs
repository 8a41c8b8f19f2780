//! Requests to the Admin API of another environment. All of them have a time-out and a most size, and no redirect is followed: the key
//! goes to the configured address alone.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;
use weir_client::{CallError, CallSettings, HttpClient, IdleConnections, ServiceUrl};

use super::MOST_SENT;
use crate::admin::answer::REVISION;
use crate::document::{AdminEnvironment, AdminRole, RESOURCE_LISTS};
use crate::stores::resources::ResourceKey;
use crate::text::json::{self, JsonFault};
use crate::text::read::shortened;

/// How long the description of a node may take.
const LONGEST_STATE: Duration = Duration::from_secs(5);
/// How long a list may take.
const LONGEST: Duration = Duration::from_secs(20);
/// How long a change may take.
const LONGEST_CHANGE: Duration = Duration::from_secs(60);
/// How long all lists may take.
const LONGEST_ALL: Duration = Duration::from_secs(60);
/// The most bytes of a description.
const MOST_STATE: usize = 64 << 10;
/// The most bytes of a list.
const MOST_LIST: usize = 8 << 20;
/// The most bytes of the response to a change, which lists the members of all its resources before and after it.
const MOST_CHANGES: usize = 3 * MOST_SENT;
/// The most bytes of all lists together.
const MOST_ALL: usize = 32 << 20;
/// The most bytes that the values of a list may take in memory.
const MOST_TREE: usize = 128 << 20;
/// The most characters that are shown of what the environment says is wrong.
const MOST_PROBLEM: usize = 2_000;
/// The most findings that are passed on.
const MOST_FINDINGS: usize = 100;

/// An environment, and how it is asked.
pub(super) struct EnvironmentClient<'e> {
    pub(super) environment: &'e AdminEnvironment,
    pub(super) client: &'e HttpClient,
}

/// All resources of an environment at a revision.
pub(super) struct EnvironmentResources {
    pub(super) revision: u64,
    /// As JSON.
    pub(super) all: BTreeMap<ResourceKey, String>,
}

/// Why an environment has not done what it was asked for: a status for the caller of this node, and the reason.
pub(super) struct EnvironmentFault {
    pub(super) status: StatusCode,
    pub(super) problem: String,
    pub(super) diagnostics: Vec<Value>,
    /// Whether the environment may have done it nevertheless.
    may_be_made: bool,
}

impl EnvironmentFault {
    fn of_gateway(problem: String) -> EnvironmentFault {
        EnvironmentFault { status: StatusCode::BAD_GATEWAY, problem, diagnostics: Vec::new(), may_be_made: true }
    }
}

/// A text, a number or a truth value; nothing else is passed on.
fn plain(value: &Value) -> Value {
    match value {
        Value::String(text) => shortened(text).into(),
        Value::Number(_) | Value::Bool(_) => value.clone(),
        _ => Value::Null,
    }
}

impl EnvironmentClient<'_> {
    /// What the environment says about the key of this node, and about itself.
    pub(super) async fn state(&self) -> Result<Value, EnvironmentFault> {
        let answer = self.ask(Method::GET, "/weir/v1/session", Bytes::new(), (LONGEST_STATE, MOST_STATE)).await?;
        let told = self.body(&answer)?;
        let own = ["node", "version", "mode", "revision", "role", "can_write"]
            .map(|name| (name.to_owned(), plain(&told[name])));
        Ok(Value::Object(own.into_iter().collect()))
    }

    /// All resources, without the credentials of consumers.
    pub(super) async fn resources(&self) -> Result<EnvironmentResources, EnvironmentFault> {
        timeout(LONGEST_ALL, self.lists()).await.unwrap_or_else(|_| {
            Err(self.fault(&format!("has not sent its resources within {} s", LONGEST_ALL.as_secs())))
        })
    }

    async fn lists(&self) -> Result<EnvironmentResources, EnvironmentFault> {
        let state = self.state().await?;
        // It shows texts that come from its variables to every other role, and it does not say which these are.
        if state["mode"] == "file" && state["role"] != AdminRole::Viewer.name() {
            let problem = "has its resources in files (`store: file`): its key must be one of a viewer, who does not see the variables of that node";
            return Err(EnvironmentFault { status: StatusCode::CONFLICT, ..self.fault(problem) });
        }
        let (mut all, mut revision, mut bytes) = (BTreeMap::new(), None, 0);
        for list in RESOURCE_LISTS {
            let answer =
                self.ask(Method::GET, &format!("/apisix/admin/{list}"), Bytes::new(), (LONGEST, MOST_LIST)).await?;
            bytes += answer.body().len();
            if bytes > MOST_ALL {
                let problem = format!("has more than {} MiB of resources", MOST_ALL >> 20);
                return Err(self.fault(&problem));
            }
            let items = self.body(&answer)?;
            let told = answer.headers().get(REVISION).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
            let Some(told) = told else {
                return Err(self.fault("does not tell its revision: it is no node of Weir with an Admin API"));
            };
            if *revision.get_or_insert(told) != told {
                let fault = self.fault("has changed while it was read; try again");
                return Err(EnvironmentFault { status: StatusCode::SERVICE_UNAVAILABLE, ..fault });
            }
            for item in items["list"].as_array().into_iter().flatten() {
                let key =
                    item["key"].as_str().and_then(|key| key.strip_prefix("/apisix/")).and_then(ResourceKey::parse);
                if let Some(key) = key.filter(|key| key.list() == *list) {
                    all.insert(key, item["value"].to_string());
                }
            }
        }
        Ok(EnvironmentResources { revision: revision.unwrap_or_default(), all })
    }

    /// Has operations made as one transaction, or only tried.
    pub(super) async fn change(&self, transaction: &Value, dry_run: bool) -> Result<Value, EnvironmentFault> {
        let path = if dry_run { "/apisix/admin/configs?dry_run=true" } else { "/apisix/admin/configs" };
        let body = Bytes::from(transaction.to_string());
        let asked = self.ask(Method::PATCH, path, body, (LONGEST_CHANGE, MOST_CHANGES)).await;
        let told = asked.and_then(|answer| self.body(&answer)).map_err(|mut fault| {
            if !dry_run && fault.may_be_made {
                fault.problem.push_str("; the change may have been made there, so compare again");
            }
            fault
        })?;
        let mut own = json!({ "environment": self.environment.name });
        for name in ["dry_run", "revision", "changes", "warnings", "diagnostics"] {
            if let Some(value) = told.get(name) {
                own[name] = value.clone();
            }
        }
        Ok(own)
    }

    async fn ask(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
        (timeout, max_content_bytes): (Duration, usize),
    ) -> Result<Response<Bytes>, EnvironmentFault> {
        let AdminEnvironment { url, key, .. } = self.environment;
        let url = ServiceUrl::parse(url).map_err(|error| self.fault(&error.to_string()))?;
        let mut key = HeaderValue::from_str(key).map_err(|_| self.fault("has a key that no header field can have"))?;
        key.set_sensitive(true);
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header("x-api-key", key)
            .header("content-type", "application/json")
            .header("user-agent", concat!("weir/", env!("CARGO_PKG_VERSION")))
            .body(body)
            .map_err(|error| self.fault(&error.to_string()))?;
        let idle = IdleConnections { max_per_origin: 1, ..IdleConnections::default() };
        let settings = CallSettings { timeout, max_content_bytes, idle, ..CallSettings::default() };
        self.client.call(&url, request, &settings).await.map_err(|error| EnvironmentFault {
            may_be_made: matches!(
                error,
                CallError::AnswerTimedOut { .. }
                    | CallError::Broken { .. }
                    | CallError::AnswerTooLarge { .. }
                    | CallError::Excess { .. }
            ),
            ..EnvironmentFault::of_gateway(format!("`{}`: {error}", shortened(&self.environment.name)))
        })
    }

    /// The JSON of a response, or why the environment refuses.
    fn body(&self, answer: &Response<Bytes>) -> Result<Value, EnvironmentFault> {
        let status = answer.status();
        let parsed = json::parse(answer.body(), MOST_TREE);
        if status.is_success() {
            return parsed.map_err(|fault| match fault {
                JsonFault::TooLarge(error) | JsonFault::Wrong(error) => {
                    self.fault(&format!("has answered what is not read: {error}"))
                }
            });
        }
        let body = parsed.unwrap_or_default();
        let told = ["error_msg", "description", "message"].iter().find_map(|name| body[name].as_str());
        let told: String = told.unwrap_or_default().chars().take(MOST_PROBLEM).collect();
        // Any other status would be one about the caller of this node.
        let passed = matches!(
            status,
            StatusCode::BAD_REQUEST
                | StatusCode::CONFLICT
                | StatusCode::PRECONDITION_FAILED
                | StatusCode::PAYLOAD_TOO_LARGE
        );
        let problem = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                format!("refuses the key of this node, or its role ({status}): {told}")
            }
            _ => format!("answers with {status}: {told}"),
        };
        let mut fault = self.fault(problem.trim_end_matches([':', ' ']));
        if passed {
            fault.status = status;
        }
        fault.may_be_made = status.is_server_error();
        fault.diagnostics = body["diagnostics"].as_array().into_iter().flatten().take(MOST_FINDINGS).cloned().collect();
        Err(fault)
    }

    fn fault(&self, problem: &str) -> EnvironmentFault {
        EnvironmentFault::of_gateway(format!("`{}` {problem}", shortened(&self.environment.name)))
    }
}
