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
            /// `ext_authz_X`: a value in the metadata of the service that `ext-authz` asks.
            AuthorizationMetadata(Box<str>),
            /// `ext_proc_X`: a value in the metadata of the service of `ext-proc`.
            ProcessorMetadata(Box<str>),
            /// `post_arg_X`: the first value of a field of a form body.
            PostArgument(Box<str>),
            /// `post_arg.PATH`: a value in a JSON or form body; the text is the part after `post_arg.`.
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
    /// The path that routes are matched with, normalised, without the query; not what a plugin has made of it. Characters
    /// that may not stand in a path are percent-encoded, as in `/a%20b`.
    Uri = "uri" | "document_uri",
    /// The request target as received: path and query, nothing decoded, without a scheme and host.
    RequestUri = "request_uri",
    /// The same as one value of a query: all but letters, digits, `-`, `.`, `_`, `~` and `*` are percent-encoded.
    EscapedRequestUri = "escaped_request_uri",
    /// The path and query that are sent to the upstream, after rewrites.
    UpstreamUri = "upstream_uri",
    /// The host of the request, in lower case and without a port.
    Host = "host",
    /// The host name of the machine that the gateway runs on.
    Hostname = "hostname",
    /// The request method.
    Method = "request_method" | "method",
    /// The scheme of the client's connection: `http` or `https`; of a stream `tcp` or `tls`.
    Scheme = "scheme",
    /// `on` if the client uses TLS, otherwise missing.
    Https = "https",
    /// The query string without its `?`.
    Query = "query_string" | "args",
    /// `?` if there is a query string, otherwise missing.
    QueryMark = "is_args",
    /// The request line as received.
    RequestLine = "request",
    /// The protocol of the request: `HTTP/1.0`, `HTTP/1.1`, `HTTP/2.0` or `HTTP/3.0`; of a stream `TCP` or `UDP`.
    ServerProtocol = "server_protocol" | "protocol",
    /// `h2` for HTTP/2 over TLS, `h2c` for HTTP/2 in cleartext, otherwise missing.
    Http2 = "http2",
    /// The field `Content-Length` of the request.
    ContentLength = "content_length",
    /// The field `Content-Type` of the request.
    ContentType = "content_type",
    /// The user name in the request's `Authorization: Basic` field.
    RemoteUser = "remote_user",
    /// The request body, if a plugin has read it. Available in log records only.
    RequestBody = "request_body",

    // The client's connection.
    /// The address of the client: the source address of the connection (with the PROXY protocol, the address that its header names),
    /// or the one that the plugin `real-ip` has found. No other setting changes it, nor does `trusted_addresses`. When a route is
    /// chosen, it is still the address of the connection.
    RemoteAddr = "remote_addr",
    /// The port of the client, likewise.
    RemotePort = "remote_port",
    /// The source address of the connection, unchanged by `real-ip`.
    PeerAddr = "realip_remote_addr",
    /// The source port of the connection, unchanged by `real-ip`.
    PeerPort = "realip_remote_port",
    /// The local address on which the connection was accepted.
    ServerAddr = "server_addr",
    /// The local port on which the connection was accepted.
    ServerPort = "server_port",
    /// The port that clients use: `public_port` of the listener, or the local port.
    PublicPort = "public_port",
    /// The same with a colon, as it stands in a URL: `:8443`. Missing for port 443 with TLS, and for port 80 without.
    PublicPortSuffix = "public_port_suffix",
    /// The same as `host`. In nginx, the name of the virtual server.
    ServerName = "server_name",
    /// The serial number of the client's connection.
    Connection = "connection",
    /// The number of requests on this connection so far, including this one.
    ConnectionRequests = "connection_requests",
    /// The process ID of the gateway.
    Pid = "pid",

    // TLS with the client.
    /// The negotiated TLS version, such as `TLSv1.3`.
    TlsProtocol = "ssl_protocol",
    /// The negotiated TLS cipher suite.
    TlsCipher = "ssl_cipher",
    /// The group of the TLS key exchange, such as `X25519MLKEM768` or `X25519`. Empty in a session of TLS 1.2 that was resumed.
    TlsCurve = "ssl_curve",
    /// The server name that the client has sent in the TLS handshake (SNI).
    TlsServerName = "ssl_server_name" | "ssl_preread_server_name",
    /// `r` if the TLS session was resumed, otherwise `.`.
    TlsSessionReused = "ssl_session_reused",
    /// `SUCCESS` if the client has presented a certificate, otherwise `NONE`. A certificate that cannot be verified ends the
    /// handshake, unless `client.mode` of the certificate is `any`: then it is `NONE`, too.
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
    /// The same, percent-encoded, so that it can stand in a header field: all but letters, digits, `-`, `.`, `_` and `~`.
    TlsClientEscapedCertificate = "ssl_client_escaped_cert",
    /// The URIs among the alternative names (SAN) of the client's certificate, such as a SPIFFE ID: a list. As a text, they are separated by commas. Names with a comma, a space or a control character are left out, and those after the 64th.
    TlsClientSanUri = "ssl_client_san_uri",
    /// The DNS names among the alternative names of the client's certificate, in lower case, likewise.
    TlsClientSanDns = "ssl_client_san_dns",
    /// The e-mail addresses among the alternative names of the client's certificate, with their domain in lower case, likewise.
    TlsClientSanEmail = "ssl_client_san_email",

    // Streams.
    /// The client identifier of a connection of MQTT, which the plugin `mqtt-proxy` reads; missing if it is empty.
    MqttClientId = "mqtt_client_id",

    // The outcome.
    /// The status sent to the client.
    Status = "status",
    /// The size of the request in bytes, head and body; of a stream, the bytes received from the client.
    RequestLength = "request_length" | "bytes_received",
    /// The number of bytes of the response body that were sent to the client.
    BodyBytesSent = "body_bytes_sent",
    /// The number of bytes of the response that were sent to the client, head and body; of a stream, all bytes sent to the client.
    BytesSent = "bytes_sent",
    /// The time since the first byte of the request, in seconds with three decimals; of a stream, since the client connected.
    RequestTime = "request_time" | "session_time",
    /// `OK` if the response was sent completely, otherwise missing.
    RequestCompletion = "request_completion",
    /// The cause for which the exchange ended early, as in the label `cause` of `weir_http_errors_total`; otherwise missing.
    ErrorCause = "error_cause",
    /// The plugin that answered the request instead of the upstream, such as `key-auth` for a 401, or `mocking` for the response that it makes; otherwise missing.
    RefusedBy = "refused_by",
    /// The address of the endpoint; missing if none was asked, as when the queue for it was full. After retries, the addresses of all attempts in order: `10.0.0.1:80, 10.0.0.2:80`.
    UpstreamAddr = "upstream_addr",
    /// The status of the upstream's response. After retries, the statuses of all attempts in order; `-` for an attempt without a response. A single attempt without one has no value: `-` in a text, empty in JSON.
    UpstreamStatus = "upstream_status",
    /// Why no connection to the endpoint could be opened, as the operating system says it: `Connection refused (os error 111)`. After retries, the errors of all attempts in order; `-` for an attempt without one.
    UpstreamError = "upstream_error",
    /// The scheme of the connection to the upstream: `http` or `https`; of a stream `tcp` or `tls`.
    UpstreamScheme = "upstream_scheme",
    /// The `Host` that was sent to the upstream.
    UpstreamHost = "upstream_host",
    /// The time that the request waited in the gateway for its turn at the endpoint, because of the upstream's `concurrency`, in seconds with three decimals. The times of the attempt do not contain it. After retries, the times of all attempts in order.
    UpstreamQueueTime = "upstream_queue_time",
    /// The time from the first byte of the request to the start of the attempt, likewise: the work and the waiting of plugins, earlier attempts, and the queue.
    UpstreamStartTime = "upstream_start_time",
    /// The time from the start of the attempt at the upstream to the last byte of its response, in seconds with three decimals. After retries, the times of all attempts in order.
    UpstreamResponseTime = "upstream_response_time",
    /// The time from the start of the attempt until the connection was established, likewise.
    UpstreamConnectTime = "upstream_connect_time",
    /// The time from the start of the attempt until the head of the response was received, likewise.
    UpstreamHeaderTime = "upstream_header_time",
    /// The size of the upstream's response body, in bytes.
    UpstreamResponseLength = "upstream_response_length",
    /// The number of bytes received from the upstream.
    UpstreamBytesReceived = "upstream_bytes_received",
    /// The number of bytes sent to the upstream.
    UpstreamBytesSent = "upstream_bytes_sent",

    // Time and identity.
    /// The current time in the Common Log Format: `23/Nov/2026:14:05:00 +0000`.
    TimeLocal = "time_local",
    /// The current time in ISO 8601: `2026-11-23T14:05:00+00:00`.
    TimeIso8601 = "time_iso8601",
    /// The current time in seconds since 1970, with three decimals.
    UnixTime = "msec",
    /// A unique id of the exchange: 32 hexadecimal digits.
    RequestId = "request_id",
    /// The id that the plugin `request-id` has read from the request or generated.
    ApisixRequestId = "apisix_request_id",
    /// The trace and the gateway's span in it, as a `traceparent` (W3C Trace Context); absent if the exchange is not sampled.
    TraceContext = "opentelemetry_context_traceparent",
    /// The id of the trace: 32 hexadecimal digits; absent if the exchange is not sampled.
    TraceId = "opentelemetry_trace_id",
    /// The id of the gateway's span: 16 hexadecimal digits; absent if the exchange is not sampled.
    SpanId = "opentelemetry_span_id",

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
    /// The address of the selected endpoint, without the port.
    BalancerIp = "balancer_ip",
    /// The port of the selected endpoint.
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
pub(crate) const MAX_NAME: usize = 256;

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
        } else if let Some(name) = after("ext_authz_") {
            Some(Variable::AuthorizationMetadata(name.into()))
        } else if let Some(name) = after("ext_proc_") {
            Some(Variable::ProcessorMetadata(name.into()))
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
            RouteId
            | RouteName
            | ServiceId
            | ServiceName
            | ConsumerName
            | ConsumerGroupId
            | ApisixRequestId
            | TraceContext
            | TraceId
            | SpanId
            | MqttClientId
            | UriParameter(_)
            | AuthorizationMetadata(_)
            | ProcessorMetadata(_) => ExchangePhase::Request,
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
            | UpstreamError
            | UpstreamQueueTime
            | UpstreamStartTime
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
            (Variable::Unknown(name), _) => return Some(format!("names the variable `{self}`, {}", unknown(name))),
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

/// What is said of a name that no variable has. One with a hyphen is likely to be that of a header field.
fn unknown(name: &str) -> String {
    let field = name.replace('-', "_").to_ascii_lowercase();
    let hint = if name.contains('-') { format!("; a header field is written `http_{field}`") } else { String::new() };
    format!("which does not exist{hint}")
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
            Variable::AuthorizationMetadata(name) => write!(out, "ext_authz_{name}"),
            Variable::ProcessorMetadata(name) => write!(out, "ext_proc_{name}"),
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
    fn variable_without_a_value_says_why() {
        for (name, at, why) in [
            ("resp_body", ExchangePhase::Record, "which does not exist"),
            ("X-Team", ExchangePhase::Record, "which does not exist; a header field is written `http_x_team`"),
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
        let metadata = Variable::AuthorizationMetadata("org_id".into());
        assert_eq!(metadata.to_string(), "ext_authz_org_id");
        assert_eq!(Variable::parse("ext_authz_org_id"), Some(metadata));
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
