//! Conditions and texts with fields such as `X-Forwarded-Proto`. nginx believes every client in them; here they count only if a trusted
//! peer sends them.

use super::Conversion;
use super::directives::{DirectiveFate, fate};
use super::syntax::Directive;
use super::target_cases;
use super::variables::names;
use crate::forwarding::is_forwarding;

/// Reports the directives that read such a field and are converted.
pub(super) fn report(conversion: &mut Conversion) {
    let is_trusted = conversion.converted.settings.iter().any(|(name, _)| name == "trusted_addresses");
    for directive in conversion.http {
        look(conversion, directive, is_trusted);
    }
}

fn look(conversion: &mut Conversion, directive: &Directive, is_trusted: bool) {
    let is_converted = match fate(&directive.name) {
        DirectiveFate::Carried => directive.name != "log_format",
        _ => target_cases::is_converted(conversion, directive),
    };
    let found = directive.arguments.iter().flat_map(|argument| names(argument)).find(|name| is_forwarding(name));
    if let Some(name) = found.filter(|_| is_converted) {
        let told =
            format!("`{}`: `${name}` counts only if an address in `trusted_addresses` sends it", directive.head());
        match is_trusted {
            true => conversion.differs(&directive.place, format!("{told}; here these are those of `set_real_ip_from`")),
            false => {
                let text =
                    "otherwise the gateway tells what it sees itself; write the addresses of your load balancers there";
                conversion.lost(&directive.place, format!("{told}: {text}"));
            }
        }
    }
    directive.children().iter().for_each(|child| look(conversion, child, is_trusted));
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    fn found(text: &str) -> Vec<String> {
        let converted = convert("n", text, &|_| Ok(Vec::new())).expect("correct");
        let all = converted.findings.iter().map(ToString::to_string);
        all.filter(|found| found.contains("counts only if")).collect()
    }

    #[test]
    fn fields_that_clients_forge_are_read_from_trusted_peers_only_and_this_is_told() {
        for name in ["http_x_forwarded_proto", "http_x_forwarded_port", "http_x_forwarded_host", "http_x_original_url"]
        {
            let server = format!(
                "server {{ location / {{ if (${name} != https) {{ return 301 https://$host$request_uri; }} proxy_pass http://a; }} }}"
            );
            let lost = found(&server);
            assert!(
                lost[0].contains("not converted") && lost[0].contains("write the addresses of your load balancers"),
                "{lost:?}"
            );
            let differs = found(&format!("set_real_ip_from 10.0.0.1; {server}"));
            assert!(
                differs[0].contains("behaves differently") && differs[0].contains("`set_real_ip_from`"),
                "{differs:?}"
            );
        }
        let sent = "server { location / { proxy_set_header X-Forwarded-Proto $http_x_forwarded_proto; proxy_pass http://a; } }";
        assert_eq!(found(sent).len(), 1);
        for read in ["http_x_forwarded_for", "http_x_real_ip", "http_x_tenant"] {
            let server = format!("server {{ location / {{ if (${read}) {{ return 403; }} proxy_pass http://a; }} }}");
            assert_eq!(found(&server), [""; 0], "{read}");
        }
    }
}
