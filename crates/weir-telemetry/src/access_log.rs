//! The built-in formats of access log lines.

/// nginx's `combined` format.
pub const COMBINED: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;

/// One JSON object per line.
pub const JSON: &str = r#"{"time":"$time_iso8601","request_id":"$request_id","consumer":"$consumer_name","remote_addr":"$remote_addr","request_method":"$request_method","request_uri":"$request_uri","server_protocol":"$server_protocol","host":"$http_host","status":$status,"body_bytes_sent":$body_bytes_sent,"bytes_sent":$bytes_sent,"request_length":$request_length,"request_time":$request_time,"upstream_addr":"$upstream_addr","upstream_status":"$upstream_status","upstream_response_time":"$upstream_response_time","refused_by":"$refused_by","error_cause":"$error_cause","upstream_error":"$upstream_error","route_id":"$route_id","http_referer":"$http_referer","http_user_agent":"$http_user_agent"}"#;
