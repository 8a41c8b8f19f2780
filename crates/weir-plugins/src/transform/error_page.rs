use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::field;
use weir_plugin::{
    Build, CollectAll, ConfigError, Definition, Exchange, HasMetadata, Phases, Plugin, PluginMetadata, Stage, Stop,
};

use crate::content::replace_response_content;

mod fetched;

use fetched::{FetchOptions, FetchedPages};

/// Gives error responses of the gateway a body: no route matches, a plugin refuses the request, no endpoint answers.
///
/// The status and the other header fields stay. Responses of upstreams are not changed, unless `upstream_errors` is set. The pages are
/// those of the options and, if `enable` is set there, those of the plugin's metadata. The page of the options comes before that of the
/// metadata, and within each the page for one status before that for a class. As a global rule, the plugin also serves requests
/// that match no route. It runs after `response-rewrite`.
///
/// With `fetch`, another upstream makes the pages. It gets a `GET` request for each such error, with `X-Code` (the status), `X-Format` (the
/// `Accept` of the client) and `X-Original-URI` (the path that the client has asked for); of the fields of the client's request only `Host`,
/// `Accept`, `Accept-Encoding`, `Accept-Language`, `User-Agent`, `X-Request-ID`, `traceparent` and `tracestate`, so neither credentials nor
/// content. The fields that describe the page, `Cache-Control` and `Expires` take the place of those of the error; other fields are
/// added where the error has none of their name, and cookies are left out. The status of the page's response may be any but 204 to 206, 304 and
/// 416. A page may have 1 MiB and take 10 seconds, and a worker waits for 1,024 at once; if there is none, the client gets a page of the
/// options or the gateway's own. Errors of gRPC calls have no pages, nor has what is refused as no valid request or for lack of room. A
/// request for a page (`CDN-Loop: weir-page`) gets none itself.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ErrorPage {
    /// Error responses of upstreams get the pages, too.
    #[serde(default)]
    upstream_errors: bool,
    /// Errors whose pages another upstream makes.
    fetch: Option<FetchOptions>,
    #[serde(flatten)]
    pages: ErrorPageOptions,
}

/// The pages wherever the plugin is used.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ErrorPageMetadata {
    /// The pages of the metadata are used.
    #[serde(default)]
    enable: bool,
    #[serde(flatten)]
    pages: ErrorPageOptions,
}

/// The pages, by status.
#[derive(Default, Deserialize, JsonSchema)]
struct ErrorPageOptions {
    /// The page for the status 400: the request is not valid.
    error_400: Option<StatusPageOptions>,
    /// The page for the status 401: the client has not proved who it is.
    error_401: Option<StatusPageOptions>,
    /// The page for the status 403: the client may not do this.
    error_403: Option<StatusPageOptions>,
    /// The page for the status 404: no route matches.
    error_404: Option<StatusPageOptions>,
    /// The page for the status 413: the body of the request is too large.
    error_413: Option<StatusPageOptions>,
    /// The page for the status 429: a limit is exceeded.
    error_429: Option<StatusPageOptions>,
    /// The page for the status 500: the gateway has failed.
    error_500: Option<StatusPageOptions>,
    /// The page for the status 502: the upstream cannot be reached, or has sent no valid response.
    error_502: Option<StatusPageOptions>,
    /// The page for the status 503: no endpoint is usable, or a limit is exceeded.
    error_503: Option<StatusPageOptions>,
    /// The page for the status 504: the upstream has not answered in time.
    error_504: Option<StatusPageOptions>,
    /// The page for each other status from 400 to 499.
    error_4xx: Option<StatusPageOptions>,
    /// The page for each other status from 500 to 599.
    error_5xx: Option<StatusPageOptions>,
}

/// One page.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StatusPageOptions {
    /// The body, as it is sent. Without it, or if it is empty, it is as if there were no such page.
    #[serde(default)]
    #[schemars(length(max = 1_048_576))]
    body: String,
    /// The `Content-Type` of the body.
    #[serde(default = "default_content_type")]
    content_type: String,
}

fn default_content_type() -> String {
    "text/html".to_owned()
}

impl Definition for ErrorPage {
    const NAME: &'static str = "error-page";
    const PRIORITY: i32 = 450;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"error-page:
  error_404: { body: "<h1>There is no such page</h1>" }
  error_5xx: { body: '{"message": "try again later"}', content_type: application/json }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let metadata = build.metadata::<ErrorPage>();
        let has_fetch = self.fetch.is_some();
        let fetched = self.fetch.map(|fetch| fetch.compile(build)).transpose()?.flatten();
        let own = self.pages.compile()?;
        let common = if metadata.enable { metadata.pages.compile()? } else { ErrorPages::default() };
        if own.0.is_empty() && common.0.is_empty() && !has_fetch {
            let problem = "has no page; give one, such as `error_404`, `fetch`, or set `enable` and pages in the plugin's metadata";
            build.warnings.push(ConfigError::new("", problem));
        }
        Ok(Arc::new(ErrorPageSender { upstream_errors: self.upstream_errors, fetched, own, common }))
    }
}

impl HasMetadata for ErrorPage {
    type Metadata = ErrorPageMetadata;
}

impl PluginMetadata for ErrorPageMetadata {
    fn check(self) -> Result<(), ConfigError> {
        self.pages.compile().map(drop)
    }
}

/// The statuses that a page is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageStatus {
    One(u16),
    /// 4 for 400 to 499.
    Class(u16),
}

struct StatusPage {
    status: PageStatus,
    body: Box<[u8]>,
    content_type: Box<[u8]>,
}

#[derive(Default)]
struct ErrorPages(Box<[StatusPage]>);

impl ErrorPageOptions {
    fn compile(self) -> Result<ErrorPages, ConfigError> {
        use PageStatus::{Class, One};
        let named = [
            ("error_400", One(400), self.error_400),
            ("error_401", One(401), self.error_401),
            ("error_403", One(403), self.error_403),
            ("error_404", One(404), self.error_404),
            ("error_413", One(413), self.error_413),
            ("error_429", One(429), self.error_429),
            ("error_500", One(500), self.error_500),
            ("error_502", One(502), self.error_502),
            ("error_503", One(503), self.error_503),
            ("error_504", One(504), self.error_504),
            ("error_4xx", Class(4), self.error_4xx),
            ("error_5xx", Class(5), self.error_5xx),
        ];
        let given = named.into_iter().filter_map(|(name, status, page)| Some((name, status, page?)));
        let compile = |(name, status, page): (&str, PageStatus, StatusPageOptions)| {
            let StatusPageOptions { body, content_type } = page;
            if content_type.is_empty() || !field::is_value(content_type.as_bytes()) {
                let problem = "is not a media type; write as `text/html`";
                return Err(ConfigError::new(format!("{name}.content_type"), problem));
            }
            let (body, content_type) = (body.into_bytes().into(), content_type.into_bytes().into());
            Ok(StatusPage { status, body, content_type })
        };
        let pages = given.map(compile).collect_all::<Vec<_>>()?;
        Ok(ErrorPages(pages.into_iter().filter(|page| !page.body.is_empty()).collect()))
    }
}

impl ErrorPages {
    fn find(&self, status: u16) -> Option<&StatusPage> {
        [PageStatus::One(status), PageStatus::Class(status / 100)]
            .into_iter()
            .find_map(|wanted| self.0.iter().find(|page| page.status == wanted))
    }
}

struct ErrorPageSender {
    upstream_errors: bool,
    fetched: Option<FetchedPages>,
    own: ErrorPages,
    /// Those of the metadata.
    common: ErrorPages,
}

impl Plugin for ErrorPageSender {
    fn phases(&self) -> Phases {
        Phases::RESPONSE
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let status = exchange.response.status;
        if status < 400 || !(self.upstream_errors || exchange.is_answered_here()) {
            return Ok(());
        }
        let request = self.fetched.as_ref().and_then(|fetched| fetched.request(exchange));
        let is_fetched = request.is_some();
        if let Some(request) = request {
            exchange.ask_for_page(request);
        }
        match self.own.find(status).or_else(|| self.common.find(status)) {
            Some(page) => {
                let end = replace_response_content(exchange, &page.body);
                exchange.response.head.set(b"Content-Type", &page.content_type).map_err(|_| Stop::Internal)?;
                Err(end)
            }
            // What the gateway has written stays until the page has come; what an upstream sends is not waited for.
            None if is_fetched && !exchange.is_answered_here() => Err(replace_response_content(exchange, b"")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use serde_json::{Value, json};
    use weir_plugin::BuildContext;

    use super::*;
    use crate::testing::{body, build, build_with, get, refused, sent};

    /// The response that a client gets, if the plugin replaces it.
    fn replaced(step: &Arc<dyn Plugin>, status: u16, from_upstream: bool) -> Option<(String, String)> {
        let mut exchange = get("/");
        let _ = exchange.respond(status, "text/plain", b"plain");
        if from_upstream {
            exchange.withdraw_response();
            exchange.response.set_status(status);
            exchange.upstream.status = status;
        }
        exchange.response.head.add(b"ETag", b"\"1\"").expect("valid");
        exchange.response.head.add(b"Retry-After", b"5").expect("valid");
        match step.on_response(&mut exchange) {
            Ok(()) => {
                assert_eq!(sent(&exchange, "etag"), Some("\"1\""));
                None
            }
            end => {
                assert_eq!((end, exchange.response.status), (Err(Stop::Answered), status));
                assert_eq!((sent(&exchange, "etag"), sent(&exchange, "retry-after")), (None, Some("5")));
                let content_type = sent(&exchange, "content-type").expect("it is set").to_owned();
                Some((content_type, body(&exchange).to_owned()))
            }
        }
    }

    fn page(content_type: &str, body: &str) -> Option<(String, String)> {
        Some((content_type.to_owned(), body.to_owned()))
    }

    #[test]
    fn a_page_for_one_status_comes_before_that_for_its_class() {
        let json = json!({"body": "{}", "content_type": "application/json"});
        let step = build::<ErrorPage>(json!({"error_404": {"body": "gone"}, "error_4xx": json, "error_502": {}}));
        assert_eq!(replaced(&step, 404, false), page("text/html", "gone"));
        assert_eq!(replaced(&step, 410, false), page("application/json", "{}"));
        for status in [200, 302, 502, 503] {
            assert_eq!(replaced(&step, status, false), None, "{status}");
        }
    }

    #[test]
    fn errors_of_an_upstream_get_pages_only_on_request() {
        let options = |upstream: bool| json!({"upstream_errors": upstream, "error_5xx": {"body": "later"}});
        let (kept, intercepted) = (build::<ErrorPage>(options(false)), build::<ErrorPage>(options(true)));
        assert_eq!((replaced(&kept, 503, true), replaced(&kept, 503, false)), (None, page("text/html", "later")));
        assert_eq!(replaced(&intercepted, 503, true), page("text/html", "later"));
        assert_eq!(replaced(&intercepted, 200, true), None);
    }

    #[test]
    fn pages_of_the_metadata_are_used_if_they_are_enabled() {
        let with = |metadata: Value, options: Value| {
            let mut shared = BuildContext::default();
            shared.metadata.insert(ErrorPage::NAME.into(), metadata);
            build_with::<ErrorPage>(options, &Rc::new(shared)).expect("valid")
        };
        let common = |enable: bool| json!({"enable": enable, "error_404": {"body": "common"}});
        assert_eq!(replaced(&with(common(true), json!({})), 404, false), page("text/html", "common"));
        assert_eq!(replaced(&with(common(false), json!({})), 404, false), None);
        let own = with(common(true), json!({"error_4xx": {"body": "own"}}));
        assert_eq!(replaced(&own, 404, false), page("text/html", "own"));
        let wrong: ErrorPageMetadata =
            serde_json::from_value(json!({"error_404": {"content_type": "a\nb"}})).expect("valid by its schema");
        let error = wrong.check().expect_err("a line end").to_string();
        assert!(error.starts_with("error_404.content_type: is not a media type"), "{error}");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"error_404": {"content_type": ""}}), "error_404.content_type: is not a media type"),
            (json!({"error_404": {"text": "a"}}), "error_404.text: the option `text` is not known"),
            (json!({"error_302": {}}), "error_302: the option `error_302` is not known"),
            (json!({"error_404": {"body": 1}}), "error_404.body: expected text"),
        ] {
            let error = refused::<ErrorPage>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
