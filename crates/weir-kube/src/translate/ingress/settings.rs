//! What the annotations of an Ingress ask of its routes and upstreams.

use serde_json::{Map, Value, json};

/// The values of ingress-nginx where an Ingress has no annotation are in [`IngressSettings::ingress_nginx`].
#[derive(Clone, Debug, Default)]
pub(super) struct IngressSettings {
    /// The options of plugins by the plugin's name.
    pub plugins: Map<String, Value>,
    /// Further keys of upstreams.
    pub upstream: Map<String, Value>,
    /// In seconds; `None`: those of Weir.
    pub timeout: Option<IngressTimeouts>,
    pub paths: PathStyle,
    /// Paths are regular expressions on each host of the Ingress.
    pub is_regex: bool,
    /// Replaces the whole path, with the groups of the rule's path.
    pub rewrite_target: Option<String>,
    pub to_https: ToHttps,
    /// Where `/` is redirected.
    pub app_root: Option<String>,
    /// `www.HOST` is redirected to `HOST`, or the other way round.
    pub from_to_www: bool,
    /// Further hosts.
    pub aliases: Vec<String>,
    /// This Ingress takes a part of the requests of another one.
    pub canary: Option<Canary>,
    /// Requests go to the cluster IP of the Service, not to its endpoints.
    pub to_cluster_ip: bool,
    /// The Service that answers where the one of a path has no endpoint.
    pub default_backend: Option<String>,
    /// The errors whose pages that Service makes.
    pub custom_errors: Vec<u16>,
    /// Those that come from the upstream are passed on.
    pub passes_errors: bool,
    /// How certificates of clients are verified: `client` of `ssls`.
    pub client_certificates: Option<Value>,
    /// An expression for the subjects of those that may send requests.
    pub client_subject: Option<String>,
    /// Services get the certificates.
    pub passes_certificate: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct IngressTimeouts {
    pub connect: f64,
    pub send: f64,
    pub read: f64,
}

/// What `ImplementationSpecific` means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PathStyle {
    /// The same as `Prefix`.
    #[default]
    Elements,
    /// A prefix of the text, as a `location` of nginx.
    Text,
}

/// Which requests without TLS are redirected to HTTPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ToHttps {
    #[default]
    None,
    /// Those for hosts that have a certificate.
    WithCertificate,
    All,
}

/// The share of a canary: the first that applies decides.
#[derive(Clone, Debug, Default)]
pub(super) struct Canary {
    pub header: Option<String>,
    pub header_value: Option<String>,
    pub header_pattern: Option<String>,
    pub cookie: Option<String>,
    pub weight: u64,
    pub weight_total: u64,
}

impl IngressSettings {
    /// The defaults of ingress-nginx: its users rely on them.
    pub(super) fn ingress_nginx() -> IngressSettings {
        let mut settings = IngressSettings {
            timeout: Some(IngressTimeouts { connect: 5.0, send: 60.0, read: 60.0 }),
            paths: PathStyle::Text,
            to_https: ToHttps::WithCertificate,
            ..IngressSettings::default()
        };
        settings.plugin("client-control", "max_body_size", json!(1 << 20));
        settings
    }

    /// Sets an option of a plugin.
    pub(super) fn plugin(&mut self, plugin: &str, option: &str, value: Value) {
        let options = self.plugins.entry(plugin).or_insert_with(|| json!({}));
        options[option] = value;
    }

    /// Sets a header field of requests.
    pub(super) fn request_header(&mut self, name: &str, value: &str) {
        let options = self.plugins.entry("proxy-rewrite").or_insert_with(|| json!({}));
        options["headers"]["set"][name] = value.into();
    }

    /// Sets an option of TLS to the endpoints.
    pub(super) fn upstream_tls(&mut self, key: &str, value: Value) {
        let tls = self.upstream.entry("tls").or_insert_with(|| json!({}));
        tls[key] = value;
    }
}
