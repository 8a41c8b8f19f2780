//! Directives that no other module converts: those that need no counterpart, and alternatives for the others.

use super::Conversion;
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
    "worker_processes",
    "keepalive_timeout",
    "client_header_timeout",
    "send_timeout",
    "keepalive_requests",
    "underscores_in_headers",
    "worker_shutdown_timeout",
    "set_real_ip_from",
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
    "real_ip_header",
    "real_ip_recursive",
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
    ("auth_basic", "write `basic-auth` in the route, and a consumer for each user"),
    ("auth_request", "write `forward-auth` with the URL of the auth service"),
    ("satisfy", "a request must pass all policies of a route"),
    ("auth_jwt", "write `jwt-auth` in the route, and a consumer for each issuer"),
    ("mirror", "write `proxy-mirror` with the host that receives the copies"),
    ("sub_filter", "write `response-rewrite` with `filters`"),
    ("map", "write routes with `vars`, one for each case"),
    ("geo", "write routes with `remote_addrs`, one for each case"),
    ("split_clients", "write `traffic-split`"),
    ("set", "variables cannot be defined; write routes with `vars`"),
    ("limit_rate", "the rate of a response is not limited"),
    ("limit_except", "write routes with `methods`"),
    ("valid_referers", "write `referer-restriction`"),
    ("stub_status", "see `status`: `/status` and `/metrics`"),
    ("client_body_timeout", "see `client_body_min_rate`: request bodies need a minimum rate"),
    ("stream", "TCP and UDP streams are not supported"),
    ("mail", "mail is not proxied"),
    ("merge_slashes", "repeated slashes in paths are not merged"),
    ("ssl_stapling", "OCSP stapling is not supported"),
    ("ssl_trusted_certificate", "OCSP stapling is not supported"),
    ("ssl_verify_depth", "see `client.depth` of the entry in `ssls`"),
    ("proxy_next_upstream_timeout", "see `retry_timeout` of the upstream"),
    ("proxy_method", "see `method` of `proxy-rewrite`"),
    ("proxy_bind", "the system chooses the local address of connections to upstreams"),
    ("proxy_cookie_", "cookies of the upstream are passed on unchanged"),
    ("proxy_set_body", "the request body is passed on unchanged"),
    ("proxy_pass_request_", "the request head and body are always passed on"),
    ("proxy_ssl_name", "see `pass_host: rewrite` and `upstream_host` of the upstream"),
    ("secure_link", "there is no counterpart"),
    ("opentelemetry", "there is no counterpart"),
];

/// Adds a finding for each directive without a counterpart, and for each that is not read where it is written.
pub fn report(conversion: &mut Conversion) {
    let (main, http) = (conversion.main, conversion.http);
    for directive in if main.is_empty() { http } else { main } {
        judge(conversion, directive, true);
    }
}

/// `is_of_node`: the settings of the node are read from the block around the directive.
fn judge(conversion: &mut Conversion, directive: &Directive, is_of_node: bool) {
    let name = directive.name.as_str();
    if NEEDLESS.contains(&name) {
        return;
    }
    if !CARRIED.contains(&name) {
        let by_name = |(begin, _): &&(&str, &str)| {
            name == *begin
                || (begin.ends_with('_') || name.starts_with(&format!("{begin}_"))) && name.starts_with(begin)
        };
        let instead = INSTEAD.iter().find(by_name).map_or("this directive is not known", |(_, instead)| instead);
        if !is_for_websockets(directive) {
            conversion.lost(&directive.place, format!("`{}`: {instead}", directive.head()));
        }
        return;
    }
    if !is_of_node && (SAME.contains(&name) || OF_THE_NODE.contains(&name)) {
        return only_for_all(conversion, directive);
    }
    let is_of_node = match name {
        "http" => true,
        "server" => conversion.only_server().is_some(),
        _ => false,
    };
    // The content of an upstream is checked where it is converted.
    if name != "upstream" && name != "if" {
        directive.children().iter().for_each(|child| judge(conversion, child, is_of_node));
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
