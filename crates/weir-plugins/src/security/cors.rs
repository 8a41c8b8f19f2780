use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use regex::bytes::RegexSet;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::field::Name;
use weir_plugin::proto::head::BadField;
use weir_plugin::proto::{Method, field};
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Flow, HasMetadata, NoteKey, Phases, Plugin,
    PluginMetadata, Stage, Stop,
};

use crate::options::pattern;

/// Lets browsers use a route from pages of other origins (CORS).
///
/// The gateway answers every OPTIONS request itself, with 200, and adds the CORS header fields to every response to an
/// allowed origin. All CORS fields of the upstream are removed, whether the origin is allowed or not.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cors {
    /// Allowed origins, such as `https://a.example`, separated by commas. `*` allows all origins. `**` allows all
    /// origins also with credentials, so any web page can send requests in the name of the user.
    #[serde(default = "default_any")]
    allow_origins: String,
    /// Allowed methods, separated by commas. `*` allows all methods; `**` allows all methods also with credentials: a preflight
    /// request is answered with the method that it asks for.
    #[serde(default = "default_any")]
    allow_methods: String,
    /// Allowed request header fields, separated by commas. `*` allows all fields; `**` allows the fields that the
    /// browser asks for.
    #[serde(default = "default_any")]
    allow_headers: String,
    /// Header fields of the response that a page may read, separated by commas.
    expose_headers: Option<String>,
    /// How long a browser may cache the answer to a preflight request, in seconds; -1 disables caching.
    #[serde(default = "default_max_age")]
    #[schemars(extend("x-weir-unit" = "s"))]
    max_age: i64,
    /// Allows requests with credentials, such as cookies. Other options cannot be `*` then.
    #[serde(default)]
    allow_credential: bool,
    /// Regular expressions for allowed origins. With this option, `allow_origins` has no effect.
    allow_origins_by_regex: Option<Vec<String>>,
    /// Names of lists of allowed origins, which are defined in `allow_origins` of the plugin metadata. The origins in
    /// `allow_origins` are allowed too, unless that option is `*` or `**`.
    allow_origins_by_metadata: Option<Vec<String>>,
    /// Origins whose pages may read resource timings (`Timing-Allow-Origin`), in the form of `allow_origins`.
    timing_allow_origins: Option<String>,
    /// Regular expressions for origins whose pages may read resource timings.
    timing_allow_origins_by_regex: Option<Vec<String>>,
}

/// What holds for every `cors`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CorsMetadata {
    /// Named lists of origins, each in the form of `allow_origins`. Plugins refer to these names in
    /// `allow_origins_by_metadata`.
    allow_origins: BTreeMap<String, String>,
}

fn default_any() -> String {
    "*".to_owned()
}

fn default_max_age() -> i64 {
    5
}

const ALL_METHODS: &str = "GET,POST,PUT,DELETE,PATCH,HEAD,OPTIONS,CONNECT,TRACE";

impl Cors {
    /// Adds the origins of the lists in the metadata that `allow_origins_by_metadata` names.
    fn add_listed_origins(&mut self, build: &mut Build) {
        let Some(names) = &self.allow_origins_by_metadata else { return };
        let metadata = build.metadata::<Cors>();
        let usual = Some(&self.allow_origins).filter(|origins| !matches!(origins.as_str(), "*" | "**"));
        let mut origins: Vec<&str> = usual.into_iter().map(String::as_str).collect();
        for (index, name) in names.iter().enumerate() {
            match metadata.allow_origins.get(name) {
                Some(listed) => origins.push(listed),
                None => {
                    let problem = format!("`{name}` is not a list in `allow_origins` of the metadata of `cors`");
                    build.fault(format!("allow_origins_by_metadata[{index}]"), problem);
                }
            }
        }
        // Without any, nothing is left to be judged.
        self.allow_origins = if origins.is_empty() { "null".to_owned() } else { origins.join(",") };
    }
}

impl Definition for Cors {
    const NAME: &'static str = "cors";
    const PRIORITY: i32 = 4000;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str =
        r#"cors: { allow_origins: "https://a.example,https://b.example", allow_methods: "GET,POST", max_age: 600 }"#;

    fn build(mut self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        self.add_listed_origins(build);
        let texts = [
            ("allow_origins", Some(&self.allow_origins)),
            ("allow_methods", Some(&self.allow_methods)),
            ("allow_headers", Some(&self.allow_headers)),
            ("expose_headers", self.expose_headers.as_ref()),
            ("timing_allow_origins", self.timing_allow_origins.as_ref()),
        ];
        for (path, text) in texts.into_iter().filter_map(|(path, text)| Some((path, text?))) {
            if !field::is_value(text.as_bytes()) {
                build.fault(path, "has a character that is not allowed in a header field");
            }
            let is_unused = path == "allow_origins" && self.allow_origins_by_regex.is_some();
            if self.allow_credential && text == "*" && path != "timing_allow_origins" && !is_unused {
                let problem = "cannot be `*` when `allow_credential` is true; name what is allowed";
                build.fault(path, problem);
            }
        }
        if self.allow_credential && self.allow_origins == "**" && self.allow_origins_by_regex.is_none() {
            let problem =
                "lets every web page send requests in the name of its visitor, because `allow_credential` is true";
            build.warnings.push(ConfigError::new("allow_origins", problem));
        }
        let expose = self.expose_headers.filter(|names| !names.is_empty());
        let origins = Origins::compile(&self.allow_origins, self.allow_origins_by_regex.as_deref(), "allow_origins");
        let timing = match (&self.timing_allow_origins, &self.timing_allow_origins_by_regex) {
            (None, None) => Ok(None),
            (texts, regexes) => {
                let texts = texts.as_deref().unwrap_or_default();
                Origins::compile(texts, regexes.as_deref(), "timing_allow_origins").map(Some)
            }
        };
        let (origins, timing) = (origins, timing).all_of()?;
        Ok(Arc::new(Sharing {
            origins,
            timing,
            methods: (self.allow_methods != "**").then_some(self.allow_methods),
            headers: (self.allow_headers != "**").then_some(self.allow_headers),
            expose,
            max_age: self.max_age.to_string(),
            credentials: self.allow_credential,
        }))
    }
}

impl HasMetadata for Cors {
    type Metadata = CorsMetadata;
}

impl PluginMetadata for CorsMetadata {
    fn check(self) -> Result<(), ConfigError> {
        let check = |(name, origins): (&String, &String)| {
            Origins::compile(origins, None, &format!("allow_origins.{name}")).map(drop)
        };
        self.allow_origins.iter().try_for_each(check)
    }
}

/// The note of an exchange whose origin is not allowed.
static REFUSED: LazyLock<NoteKey> = LazyLock::new(NoteKey::unique);

/// Whether this plugin has refused to share the response with the origin of the request.
pub(crate) fn has_refused(exchange: &Exchange) -> bool {
    exchange.notes.read(*REFUSED).is_some()
}

/// The permissions of a response (Fetch standard §3.2.3, and Private Network Access), which only this plugin gives.
static PERMISSIONS: LazyLock<[Name; 7]> = LazyLock::new(|| {
    [
        &b"Access-Control-Allow-Origin"[..],
        b"Access-Control-Allow-Methods",
        b"Access-Control-Allow-Headers",
        b"Access-Control-Allow-Credentials",
        b"Access-Control-Allow-Private-Network",
        b"Access-Control-Expose-Headers",
        b"Access-Control-Max-Age",
    ]
    .map(|name| Name::new(name).expect("it is a token"))
});

struct Sharing {
    origins: Origins,
    timing: Option<Origins>,
    /// `None`: the method that the browser requests.
    methods: Option<String>,
    /// `None`: the fields that the browser requests.
    headers: Option<String>,
    expose: Option<String>,
    max_age: String,
    credentials: bool,
}

/// Which origins are allowed.
enum Origins {
    /// The answer is `*`.
    Any,
    /// The answer is the origin, or `*` for a request without one.
    Each,
    Listed(Box<[Box<[u8]>]>),
    Matching(Arc<RegexSet>),
}

impl Origins {
    fn compile(texts: &str, regexes: Option<&[String]>, path: &str) -> Result<Origins, ConfigError> {
        if let Some(regexes) = regexes {
            return Ok(Origins::Matching(pattern::compile_set(regexes, false, &format!("{path}_by_regex"))?));
        }
        match texts {
            "*" => return Ok(Origins::Any),
            "**" => return Ok(Origins::Each),
            _ => {}
        }
        let origin = |text: &str| {
            let is_origin = text.split_once("://").is_some_and(|(scheme, host)| {
                !scheme.is_empty() && !host.is_empty() && !host.contains(['/', '*', ' '])
            });
            match text == "null" || is_origin {
                true => Ok(text.as_bytes().into()),
                false => Err(ConfigError::new(path, format!("`{text}` is not an origin; write as https://a.example"))),
            }
        };
        Ok(Origins::Listed(texts.split(',').map(str::trim).map(origin).collect_all()?))
    }

    /// The value of `Access-Control-Allow-Origin` for this origin; `None` if it is not allowed.
    fn answer<'a>(&self, origin: Option<&'a [u8]>) -> Option<&'a [u8]> {
        match self {
            Origins::Any => Some(b"*"),
            Origins::Each => Some(origin.unwrap_or(b"*")),
            Origins::Listed(origins) => origin.filter(|origin| origins.iter().any(|allowed| **allowed == **origin)),
            Origins::Matching(regexes) => origin.filter(|origin| regexes.is_match(origin)),
        }
    }

    /// Whether the answer depends on the origin, so that caches need `Vary`.
    fn varies(&self) -> bool {
        !matches!(self, Origins::Any)
    }
}

impl Plugin for Sharing {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::RESPONSE)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if exchange.request.method == Method::Options {
            return Err(exchange.respond(200, "text/plain; charset=utf-8", b""));
        }
        Ok(Flow::Continue)
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        // Cannot fail: the values are constants, or fields of the request.
        self.add_fields(exchange).map_err(|_| Stop::Internal)
    }
}

impl Sharing {
    fn add_fields(&self, exchange: &mut Exchange) -> Result<(), BadField> {
        // The fields as received from the browser, regardless of changes by other plugins.
        let request = &exchange.request.head;
        let origin = request.original(b"Origin");
        let head = &mut exchange.response.head;
        if self.origins.varies() {
            head.add(b"Vary", b"Origin")?;
        }
        // The upstream's permissions must not add to the route's, such as one for credentials.
        head.remove_named(PERMISSIONS.each_ref());
        if let Some(timing) = &self.timing {
            head.remove(b"Timing-Allow-Origin");
            if let Some(answer) = timing.answer(origin) {
                head.add(b"Timing-Allow-Origin", answer)?;
            }
        }
        let Some(answer) = self.origins.answer(origin) else {
            exchange.notes.write(*REFUSED, [0; 3]);
            return Ok(());
        };
        head.add(b"Access-Control-Allow-Origin", answer)?;
        let methods = match &self.methods {
            Some(methods) => methods.as_bytes(),
            None => request.original(b"Access-Control-Request-Method").unwrap_or(ALL_METHODS.as_bytes()),
        };
        head.add(b"Access-Control-Allow-Methods", methods)?;
        head.add(b"Access-Control-Max-Age", self.max_age.as_bytes())?;
        if let Some(names) = &self.expose {
            head.add(b"Access-Control-Expose-Headers", names.as_bytes())?;
        }
        match &self.headers {
            Some(names) => head.add(b"Access-Control-Allow-Headers", names.as_bytes())?,
            None => {
                if let Some(names) = request.original(b"Access-Control-Request-Headers") {
                    head.add(b"Access-Control-Allow-Headers", names)?;
                }
            }
        }
        if self.credentials {
            head.add(b"Access-Control-Allow-Credentials", b"true")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{build, exchange, on_request, refused, sent};

    const FIELDS: [&str; 7] = [
        "vary",
        "access-control-allow-origin",
        "access-control-allow-methods",
        "access-control-max-age",
        "access-control-expose-headers",
        "access-control-allow-headers",
        "access-control-allow-credentials",
    ];

    fn answered(options: Value, fields: &str) -> [Option<String>; 7] {
        let mut exchange = exchange(&format!("GET / HTTP/1.1\nHost: h\n{fields}"));
        let step = build::<Cors>(options);
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        step.on_response(&mut exchange).expect("let through");
        FIELDS.map(|name| sent(&exchange, name).map(str::to_owned))
    }

    fn texts(expected: [Option<&str>; 7]) -> [Option<String>; 7] {
        expected.map(|text| text.map(str::to_owned))
    }

    #[test]
    fn cors_allows_everything_by_default() {
        let all = texts([None, Some("*"), Some("*"), Some("5"), None, Some("*"), None]);
        assert_eq!(answered(json!({}), "Origin: http://a.com"), all);
        assert_eq!(answered(json!({}), "Accept: */*"), all);
    }

    #[test]
    fn only_listed_origins_are_allowed() {
        let options = json!({"allow_origins": "http://a.com,http://b.com", "allow_credential": true,
            "allow_methods": "GET", "allow_headers": "x-a", "expose_headers": "x-b"});
        let origin = Some("Origin");
        assert_eq!(
            answered(options.clone(), "Origin: http://a.com"),
            texts([origin, Some("http://a.com"), Some("GET"), Some("5"), Some("x-b"), Some("x-a"), Some("true")])
        );
        let none = texts([origin, None, None, None, None, None, None]);
        for fields in ["Origin: http://c.com", "Origin: null", "Origin: http://a.com.evil", "Accept: */*"] {
            assert_eq!(answered(options.clone(), fields), none, "{fields}");
        }
        let regex = json!({"allow_origins_by_regex": ["^https://[a-z]+\\.a\\.com$"]});
        assert_eq!(answered(regex.clone(), "Origin: https://x.a.com")[1].as_deref(), Some("https://x.a.com"));
        assert_eq!(answered(regex, "Origin: https://x.a.com.evil")[1], None);
    }

    #[test]
    fn forced_wildcards_repeat_what_is_asked() {
        let options =
            json!({"allow_origins": "**", "allow_methods": "**", "allow_headers": "**", "allow_credential": true});
        let fields = "Origin: http://a.com\nAccess-Control-Request-Headers: x-1, x-2";
        let [vary, origin, methods, _, _, headers, credentials] = answered(options.clone(), fields);
        assert_eq!((vary.as_deref(), origin.as_deref()), (Some("Origin"), Some("http://a.com")));
        assert_eq!((methods.as_deref(), headers.as_deref()), (Some(ALL_METHODS), Some("x-1, x-2")));
        assert_eq!(credentials.as_deref(), Some("true"));
        let preflight = format!("{fields}\nAccess-Control-Request-Method: PURGE");
        assert_eq!(answered(options, &preflight)[2].as_deref(), Some("PURGE"));
    }

    #[test]
    fn preflights_are_answered_here() {
        let mut exchange = exchange("OPTIONS /hello HTTP/1.1\nHost: h\nOrigin: http://a.com");
        let step = build::<Cors>(json!({"timing_allow_origins": "http://a.com"}));
        assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered));
        step.on_response(&mut exchange).expect("let through");
        assert_eq!((exchange.response.status, exchange.body.len()), (200, 0));
        assert_eq!(sent(&exchange, "access-control-allow-origin"), Some("*"));
        assert_eq!(sent(&exchange, "timing-allow-origin"), Some("http://a.com"));
    }

    #[test]
    fn the_upstreams_own_permissions_are_replaced() {
        let answered = |options: Value| {
            let mut exchange = exchange("GET / HTTP/1.1\nHost: h\nOrigin: http://a.com");
            for (name, value) in [
                ("access-control-allow-origin", "*"),
                ("Access-Control-Allow-Credentials", "true"),
                ("access-control-expose-headers", "X-Secret"),
                ("access-control-allow-headers", "X-Any"),
                ("timing-allow-origin", "*"),
                ("X-Other", "1"),
            ] {
                exchange.response.head.add(name.as_bytes(), value.as_bytes()).expect("valid");
            }
            build::<Cors>(options).on_response(&mut exchange).expect("let through");
            exchange
        };
        let other = answered(json!({"allow_origins": "http://b.com", "timing_allow_origins": "http://b.com"}));
        let names: Vec<_> = other.response.head.fields().map(|(name, _)| name.escape_ascii().to_string()).collect();
        assert_eq!(names, ["X-Other", "Vary"]);
        let allowed = answered(json!({"allow_origins": "http://a.com", "allow_headers": "x-a"}));
        assert_eq!(sent(&allowed, "access-control-allow-origin"), Some("http://a.com"));
        assert_eq!(sent(&allowed, "access-control-allow-headers"), Some("x-a"));
        assert_eq!(sent(&allowed, "access-control-allow-credentials"), None);
        assert_eq!(sent(&allowed, "access-control-expose-headers"), None);
        assert_eq!(sent(&allowed, "timing-allow-origin"), Some("*"), "there is no option for it");
    }

    #[test]
    fn u18_the_origin_is_the_browsers() {
        let mut exchange = exchange("GET / HTTP/1.1\nHost: h\nOrigin: http://a.com");
        exchange.request.head.set(b"Origin", b"http://b.com").expect("valid");
        build::<Cors>(json!({"allow_origins": "http://a.com"})).on_response(&mut exchange).expect("let through");
        assert_eq!(sent(&exchange, "access-control-allow-origin"), Some("http://a.com"));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"allow_origins": "a.com"}), "allow_origins: `a.com` is not an origin"),
            (json!({"allow_origins": "http://a.com,"}), "allow_origins: `` is not an origin"),
            (json!({"allow_origins": "http://a.com", "allow_credential": true}), "allow_methods: cannot be `*`"),
            (json!({"allow_credential": true}), "allow_origins: cannot be `*`"),
            (json!({"allow_origins_by_regex": ["["]}), "allow_origins_by_regex[0]: is not a regular expression"),
            (json!({"allow_origins_by_metadata": ["a"]}), "allow_origins_by_metadata[0]: `a` is not a list"),
            (json!({"allow_headers": "a\r\nb"}), "allow_headers: has a character"),
        ] {
            let error = refused::<Cors>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
