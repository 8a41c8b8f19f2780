//! Directives that no other module converts: those that need no counterpart, and alternatives for the others.

use super::Conversion;
use super::access::is_off;
use super::settings::{OF_THE_NODE, SAME};
use super::syntax::Directive;

/// Directives that other modules convert.
const CARRIED: &[&str] = &[
    "http",
    "server",
    "location",
    "upstream",
    "listen",
    "server_name",
    "return",
    "rewrite",
    "if",
    "internal",
    "proxy_pass",
    "grpc_pass",
    "proxy_set_header",
    "grpc_set_header",
    "proxy_connect_timeout",
    "proxy_send_timeout",
    "proxy_read_timeout",
    "grpc_connect_timeout",
    "grpc_send_timeout",
    "grpc_read_timeout",
    "proxy_next_upstream",
    "proxy_next_upstream_tries",
    "proxy_ssl_verify",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "allow",
    "deny",
    "limit_except",
    "client_max_body_size",
    "limit_req_zone",
    "limit_req",
    "limit_req_status",
    "limit_conn_zone",
    "limit_conn",
    "limit_conn_status",
    "add_header",
    "proxy_hide_header",
    "gzip",
    "gzip_types",
    "gzip_min_length",
    "gzip_comp_level",
    "gzip_proxied",
    "proxy_cache",
    "proxy_cache_path",
    "proxy_cache_valid",
    "proxy_cache_key",
    "proxy_cache_bypass",
    "proxy_no_cache",
    "proxy_cache_methods",
    "proxy_cache_use_stale",
    "proxy_cache_lock_timeout",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_protocols",
    "ssl_client_certificate",
    "ssl_verify_client",
    "ssl_verify_depth",
    "worker_processes",
    "keepalive_timeout",
    "client_header_timeout",
    "send_timeout",
    "keepalive_requests",
    "underscores_in_headers",
    "worker_shutdown_timeout",
    "set_real_ip_from",
    "real_ip_header",
    "real_ip_recursive",
    "resolver",
    "access_log",
    "log_format",
    "error_log",
    "default_type",
    "include",
];

/// Directives whose effect is the default in Weir, or that have no meaning there.
const NEEDLESS: &[&str] = &[
    "events",
    "worker_connections",
    "use",
    "multi_accept",
    "accept_mutex",
    "user",
    "pid",
    "daemon",
    "worker_rlimit_nofile",
    "worker_cpu_affinity",
    "worker_priority",
    "pcre_jit",
    "thread_pool",
    "load_module",
    "env",
    "sendfile",
    "tcp_nopush",
    "tcp_nodelay",
    "types",
    "types_hash_max_size",
    "types_hash_bucket_size",
    "server_names_hash_bucket_size",
    "server_names_hash_max_size",
    "variables_hash_max_size",
    "variables_hash_bucket_size",
    "map_hash_bucket_size",
    "map_hash_max_size",
    "server_tokens",
    "server_name_in_redirect",
    "port_in_redirect",
    "absolute_redirect",
    "proxy_http_version",
    "proxy_redirect",
    "proxy_buffering",
    "proxy_request_buffering",
    "proxy_cache_lock",
    "proxy_cache_revalidate",
    "proxy_cache_background_update",
    "proxy_cache_convert_head",
    "proxy_cache_lock_age",
    "proxy_buffer_size",
    "proxy_buffers",
    "proxy_busy_buffers_size",
    "proxy_max_temp_file_size",
    "proxy_temp_file_write_size",
    "proxy_temp_path",
    "proxy_headers_hash_max_size",
    "proxy_headers_hash_bucket_size",
    "proxy_socket_keepalive",
    "proxy_ssl_server_name",
    "proxy_ssl_session_reuse",
    "proxy_ssl_protocols",
    "proxy_ssl_ciphers",
    "client_body_buffer_size",
    "client_header_buffer_size",
    "client_body_temp_path",
    "large_client_header_buffers",
    "output_buffers",
    "postpone_output",
    "ssl_session_cache",
    "ssl_session_timeout",
    "ssl_session_tickets",
    "ssl_ciphers",
    "ssl_prefer_server_ciphers",
    "ssl_dhparam",
    "ssl_ecdh_curve",
    "ssl_buffer_size",
    "http2",
    "http2_max_concurrent_streams",
    "gzip_vary",
    "gzip_buffers",
    "gzip_http_version",
    "gzip_disable",
    "gzip_static",
    "reset_timedout_connection",
    "resolver_timeout",
    "open_file_cache",
    "open_file_cache_valid",
    "open_file_cache_min_uses",
    "open_file_cache_errors",
    "charset",
    "etag",
    "log_not_found",
    "log_subrequest",
    "limit_req_log_level",
    "limit_conn_log_level",
    "proxy_pass_header",
    "keepalive_disable",
    "lingering_close",
    "lingering_time",
    "lingering_timeout",
    "chunked_transfer_encoding",
    "proxy_ignore_client_abort",
    "ssl",
];

/// Prefixes of names, and the alternatives.
const INSTEAD: &[(&str, &str)] = &[
    ("proxy_cache_min_uses", "the first response is kept already"),
    ("proxy_cache_", "there is no counterpart"),
    ("proxy_store", "responses are not stored"),
    (
        "proxy_ignore_headers",
        "`Cache-Control` and `Expires` of the upstream always apply; for cookies see `cache_set_cookie`",
    ),
    ("fastcgi_", "only HTTP upstreams are supported"),
    ("uwsgi_", "only HTTP upstreams are supported"),
    ("scgi_", "only HTTP upstreams are supported"),
    ("memcached_", "only HTTP upstreams are supported"),
    ("root", "static files are not served; use a file server as an upstream"),
    ("alias", "static files are not served; use a file server as an upstream"),
    ("try_files", "static files are not served; use a file server as an upstream"),
    ("index", "static files are not served; use a file server as an upstream"),
    ("autoindex", "static files are not served; use a file server as an upstream"),
    ("expires", "write `response-rewrite` with `headers.set: { Cache-Control: ... }`"),
    ("error_page", "write `response-rewrite` with `vars: [[status, ...]]`"),
    ("proxy_intercept_errors", "write `response-rewrite` with `vars: [[status, ...]]`"),
    ("recursive_error_pages", "write `response-rewrite` with `vars: [[status, ...]]`"),
    ("auth_basic_user_file", "write a consumer with `basic-auth` for each user"),
    ("auth_delay", "there is no counterpart"),
    ("auth_request_set", "see `upstream_headers` of `forward-auth`"),
    ("satisfy", "a request must pass all policies of a route"),
    ("auth_jwt_", "write `jwt-auth` in the route, and a consumer for each issuer"),
    ("mirror", "write `proxy-mirror` with the host that receives the copies"),
    ("sub_filter", "write `response-rewrite` with `filters`"),
    ("map", "write routes with `vars`, one for each case"),
    ("geo", "write routes with `remote_addrs`, one for each case"),
    ("split_clients", "write `traffic-split`"),
    ("set", "variables cannot be defined; write routes with `vars`"),
    ("limit_rate", "the rate of a response is not limited"),
    ("valid_referers", "write `referer-restriction`"),
    ("stub_status", "see `status`: `/status` and `/metrics`"),
    ("client_body_timeout", "see `client_body_min_rate`: request bodies need a minimum rate"),
    ("stream", "TCP and UDP streams are not supported"),
    ("mail", "mail is not proxied"),
    ("merge_slashes", "repeated slashes in paths are not merged"),
    ("ssl_stapling", "OCSP stapling is not supported"),
    ("ssl_trusted_certificate", "OCSP stapling is not supported"),
    ("proxy_next_upstream_timeout", "see `retry_timeout` of the upstream"),
    ("proxy_method", "see `method` of `proxy-rewrite`"),
    ("proxy_bind", "the system chooses the local address of connections to upstreams"),
    ("proxy_cookie_", "cookies of the upstream are passed on unchanged"),
    ("proxy_set_body", "the request body is passed on unchanged"),
    ("proxy_pass_request_", "the request head and body are always passed on"),
    ("proxy_ssl_name", "see `pass_host: rewrite` and `upstream_host` of the upstream"),
    ("secure_link", NOTHING),
    ("opentelemetry", NOTHING),
    ("opentracing", NOTHING),
    ("otel_", NOTHING),
    ("break", "all directives of the block apply"),
    ("accept_mutex_delay", NOTHING),
    ("add_after_body", NOTHING),
    ("add_before_body", NOTHING),
    ("add_trailer", NOTHING),
    ("addition_types", NOTHING),
    ("aio", NOTHING),
    ("ancient_browser", NOTHING),
    ("brotli", "write `brotli`"),
    ("charset_", NOTHING),
    ("client_body_in_", NOTHING),
    ("connection_pool_size", NOTHING),
    ("content_by_lua", LUA),
    ("create_full_put_path", NOTHING),
    ("dav_", NOTHING),
    ("directio", NOTHING),
    ("disable_symlinks", NOTHING),
    ("echo", NOTHING),
    ("empty_gif", NOTHING),
    ("flv", NOTHING),
    ("geoip", "write routes with `remote_addrs`, one for each case"),
    ("geoip2", "write routes with `remote_addrs`, one for each case"),
    ("grpc_", NOTHING),
    ("gunzip", NOTHING),
    ("gzip_", NOTHING),
    ("header_filter_by_lua", LUA),
    ("body_filter_by_lua", LUA),
    ("log_by_lua", LUA),
    ("init_by_lua", LUA),
    ("init_worker_by_lua", LUA),
    ("lua_", LUA),
    ("http2_", NOTHING),
    ("http3", "HTTP/3 is not supported"),
    ("quic_", "HTTP/3 is not supported"),
    ("if_modified_since", NOTHING),
    ("ignore_invalid_headers", NOTHING),
    ("image_filter", NOTHING),
    ("js_", NOTHING),
    ("limit_conn_dry_run", NOTHING),
    ("limit_req_dry_run", NOTHING),
    ("lock_file", NOTHING),
    ("max_ranges", NOTHING),
    ("min_delete_depth", NOTHING),
    ("modern_browser", NOTHING),
    ("more_clear_headers", "write `response-rewrite` with `headers.remove`"),
    ("more_set_headers", "write `response-rewrite` with `headers.set`"),
    ("more_clear_input_headers", "write `proxy-rewrite` with `headers.remove`"),
    ("more_set_input_headers", "write `proxy-rewrite` with `headers.set`"),
    ("mp4", NOTHING),
    ("msie_", NOTHING),
    ("open_log_file_cache", NOTHING),
    ("override_charset", NOTHING),
    ("pagespeed", NOTHING),
    ("perl", NOTHING),
    ("proxy_", NOTHING),
    ("random_index", NOTHING),
    ("read_ahead", NOTHING),
    ("referer_hash_", NOTHING),
    ("request_pool_size", NOTHING),
    ("rewrite_log", NOTHING),
    ("send_lowat", NOTHING),
    ("slice", NOTHING),
    ("source_charset", NOTHING),
    ("ssi", NOTHING),
    ("ssl_conf_command", NOTHING),
    ("ssl_early_data", NOTHING),
    ("ssl_password_file", "the key must not be encrypted"),
    ("subrequest_output_buffer_size", NOTHING),
    ("timer_resolution", NOTHING),
    ("uninitialized_variable_warn", NOTHING),
    ("userid", NOTHING),
    ("vhost_traffic_status", "see `status`: `/status` and `/metrics`"),
    ("worker_", NOTHING),
    ("working_directory", NOTHING),
    ("xml_entities", NOTHING),
    ("xslt_", NOTHING),
    ("zstd", NOTHING),
];

const NOTHING: &str = "there is no counterpart";
const LUA: &str = "Lua is not run";

/// Directives that refuse requests, and the alternatives. A directive that this table and the others do not have may do so, too.
const REFUSING: &[(&str, &str)] = &[
    ("auth_basic", "write `basic-auth` in the route, and a consumer for each user"),
    ("auth_request", "write `forward-auth` with the URL of the auth service"),
    ("auth_jwt", "write `jwt-auth` in the route, and a consumer for each issuer"),
    ("ssl_crl", "lists of revoked certificates are not read"),
    ("ssl_ocsp", "certificates of clients are not checked by OCSP"),
    ("ssl_reject_handshake", "handshakes for names without a certificate fail in any case"),
    ("access_by_lua", LUA),
    ("rewrite_by_lua", LUA),
];

/// What becomes of the routes that a restriction without a counterpart applies to.
pub const CLOSED: &str = "the routes that it applies to answer with 503";

/// How the conversion treats directives of a name.
pub enum DirectiveFate {
    Carried,
    Needless,
    /// Not converted; the alternative.
    Instead(&'static str),
    /// Not converted, and it controls access or may do so, so its routes are closed; the alternative.
    Closes(&'static str),
}

pub fn fate(name: &str) -> DirectiveFate {
    let is_it = |begin: &str| {
        name == begin || (begin.ends_with('_') || name.starts_with(&format!("{begin}_"))) && name.starts_with(begin)
    };
    let is_lua = |begin: &str| begin.ends_with("_by_lua") && is_it(begin);
    if CARRIED.contains(&name) {
        DirectiveFate::Carried
    } else if NEEDLESS.contains(&name) {
        DirectiveFate::Needless
    } else if let Some((_, instead)) = REFUSING.iter().find(|(known, _)| name == *known || is_lua(known)) {
        DirectiveFate::Closes(instead)
    } else if let Some((_, instead)) = INSTEAD.iter().find(|(begin, _)| is_it(begin)) {
        DirectiveFate::Instead(instead)
    } else {
        DirectiveFate::Closes("this directive is not known")
    }
}

/// Adds a finding for each directive without a counterpart, and for each that is not read where it is written.
pub fn report(conversion: &mut Conversion) {
    let (main, http) = (conversion.main, conversion.http);
    for directive in if main.is_empty() { http } else { main } {
        judge(conversion, directive, BlockKind::Node { has_routes: main.is_empty() });
    }
}

/// The block around a directive.
#[derive(Clone, Copy)]
enum BlockKind {
    /// The settings of the node are read from here. `has_routes`: directives here apply to routes, too.
    Node {
        has_routes: bool,
    },
    Inner,
}

fn judge(conversion: &mut Conversion, directive: &Directive, within: BlockKind) {
    let name = directive.name.as_str();
    match fate(name) {
        DirectiveFate::Needless => return,
        DirectiveFate::Instead(_) if is_for_websockets(directive) => return,
        DirectiveFate::Instead(instead) => {
            return conversion.lost(&directive.place, format!("`{}`: {instead}", directive.head()));
        }
        DirectiveFate::Closes(_) if REFUSING.iter().any(|(known, _)| name == *known) && is_off(directive) => return,
        DirectiveFate::Closes(instead) => {
            let closes = !is_off(directive) && !matches!(within, BlockKind::Node { has_routes: false });
            let closed = if closes { format!("; {CLOSED}") } else { String::new() };
            return conversion.lost(&directive.place, format!("`{}`: {instead}{closed}", directive.head()));
        }
        DirectiveFate::Carried => {}
    }
    if matches!(within, BlockKind::Inner) && (SAME.contains(&name) || OF_THE_NODE.contains(&name)) {
        return only_for_all(conversion, directive);
    }
    let inside = match name {
        "http" => BlockKind::Node { has_routes: true },
        "server" if conversion.only_server().is_some() => BlockKind::Node { has_routes: true },
        _ => BlockKind::Inner,
    };
    // The content of an upstream is checked where it is converted.
    if name != "upstream" {
        directive.children().iter().for_each(|child| judge(conversion, child, inside));
    }
}

/// A setting of one server or location, which Weir has for the whole node only.
fn only_for_all(conversion: &mut Conversion, directive: &Directive) {
    let of_node = conversion.scope().last(&directive.name);
    if of_node.is_none_or(|of_node| of_node.arguments != directive.arguments) {
        let text = format!(
            "`{}`: this is a setting of the whole node; write it there if all servers need it",
            directive.head()
        );
        conversion.lost(&directive.place, text);
    }
}

/// The map that nginx needs for WebSocket upgrades; Weir needs nothing for them.
fn is_for_websockets(directive: &Directive) -> bool {
    directive.name == "map" && directive.argument(0) == "$http_upgrade"
}
