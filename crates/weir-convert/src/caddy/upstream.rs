//! The upstream of a `reverse_proxy`: its endpoints, and the load balancing.

use super::checks;
use super::placeholder::field_variable;
use crate::directive::Directive;
use crate::hashing::hashed;
use crate::output::{Converted, weighted_nodes};
use crate::yaml::{Yaml, YamlMembers};

/// The most ports in a range of one address.
const RANGE: u16 = 1_000;

/// An upstream while it is read.
#[derive(Default)]
pub(super) struct ProxyTarget {
    scheme: Option<String>,
    /// `host:port`.
    nodes: Vec<String>,
    weights: Vec<i64>,
    is_failover: bool,
    pub members: YamlMembers,
    pub checks: checks::HealthChecks,
    pub is_http2: bool,
    pub is_tls: bool,
    pub tls: YamlMembers,
    pub timeout: YamlMembers,
    /// `pass_host`, and `upstream_host`.
    pub pass_host: Option<(String, Option<String>)>,
    pub has_retries: bool,
}

impl ProxyTarget {
    /// Adds `[SCHEME://]HOST:PORT`, where the port may be a range.
    pub(super) fn add(&mut self, address: &str) -> Result<(), String> {
        let (scheme, authority) = match address.split_once("://") {
            Some((scheme, authority)) => (scheme, authority.trim_end_matches('/')),
            None => ("http", address),
        };
        if authority.starts_with("unix/") || address.starts_with("unix/") {
            return Err(format!(
                "`{address}`: Unix sockets are not supported; an endpoint needs an address and a port"
            ));
        }
        let is_variable = authority.contains("${{");
        if !is_variable && (authority.contains(['{', '/', '?']) || authority.is_empty()) {
            return Err(format!("`{address}`: the address of an upstream is not `host:port`"));
        }
        match scheme {
            "http" => {}
            "https" => self.is_tls = true,
            "h2c" => self.is_http2 = true,
            other => return Err(format!("`{other}://`: the scheme of an upstream is http, https or h2c")),
        }
        if self.scheme.replace(scheme.to_owned()).is_some_and(|known| known != scheme) {
            return Err("upstreams with different schemes".to_owned());
        }
        let default = if scheme == "https" { 443 } else { 80 };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !is_variable && !port.ends_with(']') => (host, port.to_owned()),
            _ => (authority, if is_variable { String::new() } else { default.to_string() }),
        };
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        let (first, last) = port.split_once('-').unwrap_or((&port, &port));
        let range = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
        match range {
            _ if is_variable => self.nodes.push(authority.to_owned()),
            Some((first, last)) if first <= last && last - first < RANGE => {
                self.nodes.extend((first..=last).map(|port| format!("{host}:{port}")));
            }
            _ => return Err(format!("`{address}`: `{port}` is no port")),
        }
        Ok(())
    }

    pub(super) fn policy(&mut self, converted: &mut Converted, line: &Directive) -> Result<(), String> {
        let text = |name: &str, value: &str| (name.to_owned(), Yaml::text(value));
        let argument = line.argument(1);
        let members = match line.argument(0) {
            "round_robin" => vec![text("type", "roundrobin")],
            "weighted_round_robin" => {
                self.weights = line.after_first().iter().filter_map(|weight| weight.parse().ok()).collect();
                vec![text("type", "roundrobin")]
            }
            "random" => vec![text("type", "random")],
            "random_choose" => {
                converted.differs(&line.place, format!("`{}`: `least_conn` is used instead", line.head()));
                vec![text("type", "least_conn")]
            }
            "least_conn" => vec![text("type", "least_conn")],
            "ip_hash" | "client_ip_hash" => vec![text("type", "ip_hash")],
            "uri_hash" => hashed("request_uri"),
            "header" => hashed(&format!("http_{}", field_variable(argument))),
            "query" => hashed(&format!("arg_{argument}")),
            "cookie" => {
                let name = if argument.is_empty() { "lb" } else { argument };
                let options = Yaml::map([("type", Yaml::text("cookie")), ("name", Yaml::text(name))]);
                vec![text("type", "random"), ("persistence".to_owned(), options)]
            }
            "first" => {
                self.is_failover = true;
                Vec::new()
            }
            other => return Err(format!("`lb_policy {other}`: there is no such policy here")),
        };
        if line.block.is_some() {
            converted.lost(&line.place, format!("the block of `{}`", line.head()));
        }
        self.members.extend(members);
        Ok(())
    }

    pub(super) fn has_several(&self) -> bool {
        self.nodes.len() > 1
    }

    /// Builds the members of the upstream.
    pub(super) fn upstream(&mut self) -> Result<YamlMembers, String> {
        if self.nodes.is_empty() {
            return Err("`reverse_proxy` without an upstream".to_owned());
        }
        let mut members = vec![("nodes".to_owned(), self.listed())];
        let has_type = self.members.iter().any(|(name, _)| name == "type");
        if self.nodes.len() > 1 && !has_type && !self.is_failover {
            members.push(("type".to_owned(), Yaml::text("random")));
        }
        let several = self.nodes.len() > 1;
        members.extend(self.members.drain(..).filter(|(name, _)| several || name != "type"));
        if self.is_tls {
            members.push(("scheme".to_owned(), Yaml::text("https")));
        }
        if self.is_http2 {
            members.push(("http2".to_owned(), Yaml::Boolean(true)));
        }
        if let Some((kind, host)) = self.pass_host.take() {
            members.push(("pass_host".to_owned(), Yaml::text(kind)));
            members.extend(host.map(|host| ("upstream_host".to_owned(), Yaml::text(host))));
        }
        if !self.tls.is_empty() {
            members.push(("tls".to_owned(), Yaml::Map(std::mem::take(&mut self.tls))));
        }
        members.extend(self.checks.members(self.is_tls));
        Ok(members)
    }

    fn listed(&self) -> Yaml {
        if !self.is_failover {
            let weight = |number: usize| self.weights.get(number).copied().unwrap_or(1);
            return weighted_nodes(self.nodes.iter().enumerate().map(|(at, node)| (node.clone(), weight(at))));
        }
        let node = |(position, node): (usize, &String)| {
            let (host, port) = node.rsplit_once(':').unwrap_or((node, "80"));
            let mut members = vec![
                ("host".to_owned(), Yaml::text(host)),
                ("port".to_owned(), Yaml::Integer(port.parse().unwrap_or(80))),
                ("weight".to_owned(), Yaml::Integer(1)),
            ];
            if position > 0 {
                members.push(("priority".to_owned(), Yaml::Integer(-(position as i64))));
            }
            Yaml::Map(members)
        };
        Yaml::List(self.nodes.iter().enumerate().map(node).collect())
    }

    /// `timeout` with all of its members.
    pub(super) fn times(&self) -> YamlMembers {
        let of = |kind: &str| {
            let known = self.timeout.iter().find(|(name, _)| name == kind).map(|(_, time)| time.clone());
            (kind.to_owned(), known.unwrap_or(Yaml::Integer(60)))
        };
        ["connect", "send", "read"].map(of).to_vec()
    }
}
