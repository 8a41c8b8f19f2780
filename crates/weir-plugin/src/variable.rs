//! The variables of expressions and templates, resolved once when a configuration is compiled.
//!
//! The names are those of nginx and Apache APISIX. They are resolved early so that serving a request compares no names.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

/// The source of variables' values, usually an exchange.
pub trait Variables {
    /// The value, or `None` if it is missing: no such header, or a phase that has not been reached.
    fn variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>>;

    /// Whether `test` holds for one element of a variable that is a list, as [`Variable::GraphqlRootFields`] is.
    /// A variable that is not a list has no elements.
    fn any_element(&self, _variable: &Variable, _test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        false
    }

    /// The value as an address. Overridden where the address is available without parsing text.
    fn address(&self, variable: &Variable) -> Option<IpAddr> {
        let text = self.variable(variable)?;
        std::str::from_utf8(&text).ok()?.parse().ok()
    }
}

/// When variables are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExchangePhase {
    /// A route is being chosen.
    Routing,
    /// Plugins process the request.
    Request,
    /// There is a response.
    Answer,
    /// The exchange has ended; the content that was read of it is available.
    Record,
}

/// Declares the variables with a fixed name, and their aliases.
macro_rules! variables {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal $(| $alias:literal)*,)+) => {
        /// One variable. The documentation of a variant starts with its name in expressions and templates, if it has a prefix.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Variable {
            $($(#[doc = $doc])+ $variant,)+

            /// `arg_X`: the first value of query argument `X`, decoded. Names are case-sensitive.
            Argument(Box<str>),
            /// `http_X`: a request header. Stored in lower case, with dashes: `http_user_agent` is `user-agent`.
            Header(Box<str>),
            /// `cookie_X`: the value of one cookie.
            Cookie(Box<str>),
            /// `sent_http_X`: a header of the response as sent to the client, stored like [`Variable::Header`].
            SentHeader(Box<str>),
            /// `upstream_http_X`: the same as `sent_http_X`, so it includes changes that plugins made.
            UpstreamHeader(Box<str>),
            /// `uri_param_X`: the value of the parameter `:X` in the `uri` of the route.
            UriParameter(Box<str>),
            /// `post_arg_X`: the first value of a field of a form body.
            PostArgument(Box<str>),
            /// `post_arg.PATH`: a place in a JSON, form or multipart body; the text is the part after `post_arg.`.
            PostPath(Box<str>),
            /// `1`, `2`...: a group of the regular expression matched by the plugin that renders a template.
            Capture(u16),
            /// An unknown name. It has no value unless a plugin sets one.
            Unknown(Box<str>),
        }

        impl Variable {
            /// The variable with this name; `None` if the name is unknown.
            pub fn parse(name: &str) -> Option<Variable> {
                match name {
                    $($name $(| $alias)* => Some(Variable::$variant),)+
                    _ => Variable::parse_prefixed(name),
                }
            }

            /// The name of a variable with a fixed name.
            fn fixed_name(&self) -> Option<&'static str> {
                match self {
                    $(Variable::$variant => Some($name),)+
                    _ => None,
                }
            }
        }

        /// The variables with a fixed name: their names, and their documentation.
        pub const FIXED: &[(&[&str], &str)] = &[$((&[$name, $($alias,)*], concat!($($doc,)+)),)+];
    };
}

variables! {
    // The request.
    /// The path as routes see it: decoded and normalised, without the query.
    Uri = "uri" | "document_uri",
    /// The request target as received: path and query, nothing decoded.
    RequestUri = "request_uri",
    /// The path and query that are sent to the upstream, after rewrites.
    UpstreamUri = "upstream_uri",
    /// The host the request is for: lower case, without a port.
    Host = "host",
    /// The name of this machine.
    Hostname = "hostname",
    /// The request method.
    Method = "request_method" | "method",
    /// `http` or `https`, as this gateway was spoken to.
    Scheme = "scheme",
    /// `on` over TLS, missing otherwise.
    Https = "https",
    /// The query string without its `?`.
    Query = "query_string" | "args",
    /// `?` when there is a query string, missing otherwise.
    QueryMark = "is_args",
    /// The request line as received.
    RequestLine = "request",
    /// The protocol as in the request line: `HTTP/1.1`, `HTTP/2.0`.
    ServerProtocol = "server_protocol",
    /// `h2` for HTTP/2 over TLS, `h2c` for HTTP/2 in the clear, missing otherwise.
    Http2 = "http2",
    /// The Content-Length of the request.
    ContentLength = "content_length",
    /// The Content-Type of the request.
    ContentType = "content_type",
    /// The user name of basic authentication.
    RemoteUser = "remote_user",
    /// The body of the request, where a plugin has read it: in records.
    RequestBody = "request_body",

    // The client's connection.
    /// The address of the client, after `real-ip`.
    RemoteAddr = "remote_addr",
    /// The port of the client, after `real-ip`.
    RemotePort = "remote_port",
    /// The address of the peer of the connection, whatever `real-ip` found.
    PeerAddr = "realip_remote_addr",
    /// The port of the peer of the connection, likewise.
    PeerPort = "realip_remote_port",
    /// The address this connection was accepted on.
    ServerAddr = "server_addr",
    /// The port this connection was accepted on.
    ServerPort = "server_port",
    /// The name of the virtual server: the host, for us.
    ServerName = "server_name",
    /// Serial number of the connection.
    Connection = "connection",
    /// Number of requests on this connection so far, this one counted.
    ConnectionRequests = "connection_requests",
    /// The process.
    Pid = "pid",

    // TLS with the client.
    /// The negotiated protocol: `TLSv1.3`.
    TlsProtocol = "ssl_protocol",
    /// The negotiated cipher suite.
    TlsCipher = "ssl_cipher",
    /// The server name the client asked for in its hello.
    TlsServerName = "ssl_server_name",
    /// `r` when the session was resumed, `.` when not.
    TlsSessionReused = "ssl_session_reused",
    /// `SUCCESS`, `FAILED:reason` or `NONE`.
    TlsClientVerify = "ssl_client_verify",
    /// The subject of the client's certificate.
    TlsClientSubject = "ssl_client_s_dn",
    /// The issuer of the client's certificate.
    TlsClientIssuer = "ssl_client_i_dn",
    /// The serial number of the client's certificate, in hexadecimal.
    TlsClientSerial = "ssl_client_serial",
    /// The SHA-1 fingerprint of the client's certificate, in hexadecimal.
    TlsClientFingerprint = "ssl_client_fingerprint",
    /// The client's certificate as PEM.
    TlsClientCertificate = "ssl_client_raw_cert",

    // The outcome.
    /// The status sent to the client.
    Status = "status",
    /// Bytes of the request, head and body.
    RequestLength = "request_length",
    /// Bytes of the response body sent to the client.
    BodyBytesSent = "body_bytes_sent",
    /// Bytes of the response sent to the client, head and body.
    BytesSent = "bytes_sent",
    /// Seconds since the first byte of the request, with milliseconds.
    RequestTime = "request_time",
    /// `OK` when the exchange was completed, missing otherwise.
    RequestCompletion = "request_completion",
    /// What ended the exchange early, as `weir_http_errors_total` counts it; missing otherwise.
    ErrorCause = "error_cause",
    /// The plugin that has ended the exchange, as `key-auth` in a 401; missing otherwise.
    RefusedBy = "refused_by",
    /// The address that was asked; those of earlier attempts stand before it: `10.0.0.1:80, 10.0.0.2:80`.
    UpstreamAddr = "upstream_addr",
    /// The status it answered with, and those of earlier attempts; `-` is an attempt without an answer.
    UpstreamStatus = "upstream_status",
    /// The scheme towards the upstream.
    UpstreamScheme = "upstream_scheme",
    /// The host sent to the upstream.
    UpstreamHost = "upstream_host",
    /// Seconds until the upstream's last byte; for several attempts like the statuses.
    UpstreamResponseTime = "upstream_response_time",
    /// Seconds until the upstream's connection stood, likewise.
    UpstreamConnectTime = "upstream_connect_time",
    /// Seconds until the upstream's response head, likewise.
    UpstreamHeaderTime = "upstream_header_time",
    /// Bytes of the upstream's response body.
    UpstreamResponseLength = "upstream_response_length",
    /// Bytes received from the upstream.
    UpstreamBytesReceived = "upstream_bytes_received",
    /// Bytes sent to the upstream.
    UpstreamBytesSent = "upstream_bytes_sent",

    // Time and identity.
    /// Now, as in the Common Log Format.
    TimeLocal = "time_local",
    /// Now, as ISO 8601 has it.
    TimeIso8601 = "time_iso8601",
    /// Now, in seconds since 1970 with milliseconds.
    UnixTime = "msec",
    /// 32 hexadecimal digits, different for each exchange.
    RequestId = "request_id",
    /// The id that the plugin `request-id` has found in the request, or given it.
    ApisixRequestId = "apisix_request_id",

    // Names in the configuration.
    /// The id of the route.
    RouteId = "route_id",
    /// The name of the route.
    RouteName = "route_name",
    /// The id of the service.
    ServiceId = "service_id",
    /// The name of the service.
    ServiceName = "service_name",
    /// The user name of the consumer.
    ConsumerName = "consumer_name",
    /// The id of the consumer's group.
    ConsumerGroupId = "consumer_group_id",
    /// The host of the endpoint that was picked.
    BalancerIp = "balancer_ip",
    /// The port of the endpoint that was picked.
    BalancerPort = "balancer_port",

    // GraphQL.
    /// The name of the operation.
    GraphqlName = "graphql_name",
    /// `query`, `mutation` or `subscription`.
    GraphqlOperation = "graphql_operation",
    /// The fields at the root: a list.
    GraphqlRootFields = "graphql_root_fields",
}

/// The names that have no prefix.
pub fn fixed_names() -> impl Iterator<Item = &'static str> {
    FIXED.iter().flat_map(|(names, _)| names.iter().copied())
}

/// Longer names are not variables; they would be stored for the lifetime of the configuration.
const MAX_NAME: usize = 256;

impl Variable {
    fn parse_prefixed(name: &str) -> Option<Variable> {
        if name.len() > MAX_NAME {
            return None;
        }
        let after = |prefix| name.strip_prefix(prefix).filter(|rest: &&str| !rest.is_empty());
        let header = |name: &str| name.to_ascii_lowercase().replace('_', "-").into_boxed_str();
        if let Some(name) = after("arg_") {
            Some(Variable::Argument(name.into()))
        } else if let Some(name) = after("http_") {
            Some(Variable::Header(header(name)))
        } else if let Some(name) = after("cookie_") {
            Some(Variable::Cookie(name.into()))
        } else if let Some(name) = after("sent_http_") {
            Some(Variable::SentHeader(header(name)))
        } else if let Some(name) = after("upstream_http_") {
            Some(Variable::UpstreamHeader(header(name)))
        } else if let Some(name) = after("uri_param_") {
            Some(Variable::UriParameter(name.into()))
        } else if let Some(name) = after("post_arg_") {
            Some(Variable::PostArgument(name.into()))
        } else if let Some(path) = after("post_arg.") {
            Some(Variable::PostPath(path.into()))
        } else if name.bytes().all(|byte| byte.is_ascii_digit()) {
            name.parse().ok().map(Variable::Capture)
        } else {
            None
        }
    }

    /// The variable with this name, known or not.
    pub fn named(name: &str) -> Variable {
        Variable::parse(name).unwrap_or_else(|| Variable::Unknown(name.into()))
    }

    /// The earliest moment at which it may have a value; `None` is never, since content is not read for it.
    pub fn since(&self) -> Option<ExchangePhase> {
        use Variable::*;
        Some(match self {
            RouteId | RouteName | ServiceId | ServiceName | ConsumerName | ConsumerGroupId | ApisixRequestId
            | UriParameter(_) => ExchangePhase::Request,
            Status
            | BytesSent
            | BodyBytesSent
            | RequestCompletion
            | ErrorCause
            | RefusedBy
            | SentHeader(_)
            | UpstreamHeader(_)
            | UpstreamStatus
            | UpstreamAddr
            | UpstreamConnectTime
            | UpstreamHeaderTime
            | UpstreamResponseTime
            | UpstreamResponseLength
            | UpstreamBytesReceived
            | UpstreamBytesSent
            | BalancerIp
            | BalancerPort => ExchangePhase::Answer,
            RequestBody | PostArgument(_) | PostPath(_) => ExchangePhase::Record,
            GraphqlName | GraphqlOperation | GraphqlRootFields | Unknown(_) => return None,
            _ => ExchangePhase::Routing,
        })
    }

    /// Why it has no value at this moment; `None` if it may have one.
    pub fn absence(&self, at: ExchangePhase) -> Option<String> {
        let why = match (self, self.since()) {
            (Variable::Unknown(_), _) => "which does not exist",
            (_, Some(since)) if since <= at => return None,
            (_, Some(ExchangePhase::Routing | ExchangePhase::Request)) => "which has no value before a route is chosen",
            (_, Some(ExchangePhase::Answer)) => "which has no value before the request is answered",
            (_, Some(ExchangePhase::Record) | None) => "which needs the request body, and the body is not read here",
        };
        Some(format!("names the variable `{self}`, {why}"))
    }

    pub fn is_known(&self) -> bool {
        !matches!(self, Variable::Unknown(_))
    }
}

/// Writes the name in the form that parses to the same variable.
impl fmt::Display for Variable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variable::Argument(name) => write!(out, "arg_{name}"),
            Variable::Header(name) => write!(out, "http_{}", name.replace('-', "_")),
            Variable::Cookie(name) => write!(out, "cookie_{name}"),
            Variable::SentHeader(name) => write!(out, "sent_http_{}", name.replace('-', "_")),
            Variable::UpstreamHeader(name) => write!(out, "upstream_http_{}", name.replace('-', "_")),
            Variable::UriParameter(name) => write!(out, "uri_param_{name}"),
            Variable::PostArgument(name) => write!(out, "post_arg_{name}"),
            Variable::PostPath(path) => write!(out, "post_arg.{path}"),
            Variable::Capture(number) => write!(out, "{number}"),
            Variable::Unknown(name) => out.write_str(name),
            fixed => out.write_str(fixed.fixed_name().expect("every other variant has a fixed name")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_value_says_why() {
        for (name, at, why) in [
            ("resp_body", ExchangePhase::Record, "which does not exist"),
            ("consumer_name", ExchangePhase::Routing, "which has no value before a route is chosen"),
            ("sent_http_a", ExchangePhase::Request, "which has no value before the request is answered"),
            ("post_arg_a", ExchangePhase::Answer, "which needs the request body, and the body is not read here"),
            ("post_arg.a.b", ExchangePhase::Answer, "which needs the request body, and the body is not read here"),
            ("graphql_name", ExchangePhase::Record, "which needs the request body, and the body is not read here"),
            ("uri_param_a", ExchangePhase::Routing, "which has no value before a route is chosen"),
        ] {
            let told = Variable::named(name).absence(at);
            assert_eq!(told, Some(format!("names the variable `{name}`, {why}")), "{name}");
        }
        for (name, at) in [
            ("remote_addr", ExchangePhase::Routing),
            ("consumer_name", ExchangePhase::Request),
            ("status", ExchangePhase::Answer),
            ("post_arg_a", ExchangePhase::Record),
        ] {
            assert_eq!(Variable::named(name).absence(at), None, "{name}");
        }
    }

    #[test]
    fn fixed_names_are_known_and_unique() {
        let mut seen = std::collections::HashSet::new();
        for name in fixed_names() {
            assert!(seen.insert(name), "{name} is listed twice");
            let variable = Variable::parse(name).expect("a fixed name");
            assert_eq!(Variable::parse(&variable.to_string()), Some(variable));
        }
    }

    #[test]
    fn prefixed_names_carry_their_rest() {
        assert_eq!(Variable::parse("arg_Name"), Some(Variable::Argument("Name".into())));
        assert_eq!(Variable::parse("http_User_Agent"), Some(Variable::Header("user-agent".into())));
        assert_eq!(Variable::parse("http_user-id"), Some(Variable::Header("user-id".into())));
        assert_eq!(Variable::parse("upstream_http_x_a"), Some(Variable::UpstreamHeader("x-a".into())));
        assert_eq!(Variable::parse("post_arg.a.b[*].c"), Some(Variable::PostPath("a.b[*].c".into())));
        assert_eq!(Variable::parse("cookie__device"), Some(Variable::Cookie("_device".into())));
        assert_eq!(Variable::parse("12"), Some(Variable::Capture(12)));
    }

    #[test]
    fn names_nobody_knows_are_kept_as_unknown() {
        for name in ["", "arg_", "http_", "nonsense", "99999999", "post_arg"] {
            assert_eq!(Variable::parse(name), None, "{name}");
            assert_eq!(Variable::named(name), Variable::Unknown(name.into()));
            assert_eq!(Variable::named(name).to_string(), name);
        }
        assert_eq!(Variable::parse(&format!("arg_{}", "x".repeat(300))), None);
    }
}
