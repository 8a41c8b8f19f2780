//! `reverse_proxy`: the upstream of a route.

use super::answers::StepAnswer;
use super::headers;
use super::rewriting::{self, NotRewritten};
use super::state::RequestState;
use super::steps::SiteWalk;
use super::units::seconds;
use super::upstream::ProxyTarget;
use super::{checks, matcher, transport};
use crate::directive::Directive;
use crate::yaml::Yaml;

/// Options without a counterpart that affect neither requests nor responses.
const NEEDLESS: [&str; 8] = [
    "flush_interval",
    "lb_try_interval",
    "buffer_requests",
    "buffer_responses",
    "max_buffer_size",
    "request_buffers",
    "response_buffers",
    "stream_close_delay",
];

impl SiteWalk<'_, '_> {
    pub(super) fn reverse_proxy(
        &mut self,
        state: &mut RequestState,
        directive: &Directive,
        arguments: &[String],
    ) -> Result<StepAnswer, String> {
        let mut target = ProxyTarget::default();
        for address in arguments {
            target.add(address)?;
        }
        for line in directive.children() {
            self.option(state, &mut target, directive, line)?;
        }
        target.checks.tell_unused(self.converted);
        if target.has_several() && !target.has_retries {
            let text = "`reverse_proxy`: a request whose connection fails is tried at another endpoint; `retries: 0` of the \
                        upstream prevents this";
            self.converted.differs(&directive.place, text);
        }
        if !target.timeout.iter().any(|(name, _)| name == "read") {
            self.unlimited(directive);
        }
        let members = target.upstream()?;
        let mut answer = vec![("upstream".to_owned(), Yaml::Map(members))];
        if !target.timeout.is_empty() {
            answer.push(("timeout".to_owned(), Yaml::Map(target.times())));
        }
        Ok(StepAnswer::Upstream(answer))
    }

    /// Reported once for all sites.
    fn unlimited(&mut self, directive: &Directive) {
        let text =
            "an upstream that sends nothing for 60 s is answered for with 504, see `timeout`; Caddy waits for ever";
        if !self.converted.findings.iter().any(|finding| finding.text == text) {
            self.converted.differs(&directive.place, text);
        }
    }

    fn option(
        &mut self,
        state: &mut RequestState,
        target: &mut ProxyTarget,
        directive: &Directive,
        line: &Directive,
    ) -> Result<(), String> {
        let name = line.name.as_str();
        let value = line.argument(0);
        match name {
            _ if NEEDLESS.contains(&name) => {}
            _ if name.starts_with('@') => {}
            "to" => line.arguments.iter().try_for_each(|address| target.add(address))?,
            "lb_policy" => target.policy(self.converted, line)?,
            "lb_retries" => {
                target.has_retries = true;
                target.members.extend(value.parse().ok().map(|count| ("retries".to_owned(), Yaml::Integer(count))));
            }
            "lb_try_duration" => {
                target.has_retries = true;
                target.members.extend(seconds(value).map(|time| ("retry_timeout".to_owned(), checks::number(time))));
            }
            "header_up" => self.header_up(state, target, line)?,
            "header_down" => {
                headers::response(self.converted, state, line, std::slice::from_ref(&line.arguments));
            }
            "method" => state.method = Some(value.to_ascii_uppercase()),
            "rewrite" => {
                rewriting::rewrite(self.converted, state, &line.place, value).map_err(|NotRewritten(why)| why)?
            }
            "transport" if value == "http" => transport::read(self.converted, target, line),
            "transport" => return Err(format!("`transport {value}`: only HTTP upstreams are supported")),
            "trusted_proxies" => self.trusted(line),
            "dynamic" => return Err("`dynamic`: write `discovery_type: dns` in the upstream".to_owned()),
            _ if target.checks.read(self.converted, line) => {}
            _ => {
                let text = format!("`{}` in `{}`", line.head(), directive.name);
                self.converted.lost(&line.place, text);
            }
        }
        Ok(())
    }

    /// `Host` is set in the upstream; fields that the gateway always sends are skipped.
    fn header_up(
        &mut self,
        state: &mut RequestState,
        target: &mut ProxyTarget,
        line: &Directive,
    ) -> Result<(), String> {
        const SENT_ANYWAY: [&str; 5] =
            ["x-real-ip", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port"];
        let field = line.argument(0).trim_end_matches(':').to_ascii_lowercase();
        let value = line.argument(1);
        if SENT_ANYWAY.contains(&field.as_str()) && value.starts_with('{') {
            return Ok(());
        }
        if field != "host" {
            headers::request(self.converted, state, line, std::slice::from_ref(&line.arguments));
            return Ok(());
        }
        target.pass_host = match value {
            "{host}" | "{http.request.host}" | "{hostport}" | "{http.request.hostport}" => None,
            "{upstream_hostport}" | "{http.reverse_proxy.upstream.hostport}" | "{http.reverse_proxy.upstream.host}" => {
                Some(("node".to_owned(), None))
            }
            value if value.contains('{') && !value.starts_with("${{") => {
                return Err(format!("`header_up Host {value}`"));
            }
            value => Some(("rewrite".to_owned(), Some(value.to_owned()))),
        };
        Ok(())
    }

    fn trusted(&mut self, line: &Directive) {
        let ranges = line.arguments.iter().flat_map(|range| match range.as_str() {
            "private_ranges" => matcher::PRIVATE_RANGES.map(str::to_owned).to_vec(),
            range => vec![range.to_owned()],
        });
        super::options::trust(self.converted, ranges);
        let text = "`trusted_proxies`: `trusted_addresses` is a setting of the node; it holds for all routes";
        self.converted.differs(&line.place, text);
    }
}
