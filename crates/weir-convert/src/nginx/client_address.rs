//! `set_real_ip_from`, `real_ip_header` and `real_ip_recursive`: from whom the client's address is taken, and from which field.

use super::Conversion;
use super::addresses::is_network;
use super::scope::BlockScope;
use super::syntax::Directive;
use crate::output::ConvertedResource;
use crate::yaml::{Yaml, YamlMembers};

const TRUSTED: &str = "set_real_ip_from";
/// The header field of `real_ip_header` unless it is written.
const FIELD: &str = "X-Real-IP";
/// The value of `real_ip_header` for the address that the PROXY protocol names.
const PROXY_PROTOCOL: &str = "proxy_protocol";

/// How the client's address is found at a place.
#[derive(PartialEq, Eq)]
struct ClientAddress<'a> {
    trusted: Vec<&'a str>,
    field: String,
    is_recursive: bool,
}

impl<'a> ClientAddress<'a> {
    /// `None` if it is the address of the connection. That is also the one of the PROXY protocol.
    fn of(scope: &BlockScope<'a>) -> Option<ClientAddress<'a>> {
        let lines = scope.all(TRUSTED).into_iter().map(|line| line.argument(0));
        let trusted: Vec<&str> = lines.filter(|peer| is_network(peer)).collect();
        let field = scope.value("real_ip_header").unwrap_or(FIELD).to_ascii_lowercase();
        let is_recursive = scope.is_on("real_ip_recursive");
        (!trusted.is_empty() && field != PROXY_PROTOCOL).then_some(ClientAddress { trusted, field, is_recursive })
    }

    fn plugin(&self) -> (String, Yaml) {
        let options = [
            ("source", Yaml::text(format!("http_{}", self.field.replace('-', "_")))),
            ("trusted_addresses", Yaml::texts(&self.trusted)),
            ("recursive", Yaml::Boolean(self.is_recursive)),
        ];
        ("real-ip".to_owned(), Yaml::map(options))
    }
}

/// Whether the client's address at this place is another one than that of the connection, by which routes are chosen.
pub(super) fn is_found(scope: &BlockScope) -> bool {
    ClientAddress::of(scope).is_some()
}

/// The plugin for the routes of this place, unless a global rule has it for all.
pub(super) fn plugin(conversion: &Conversion, scope: &BlockScope) -> YamlMembers {
    let found = ClientAddress::of(scope).filter(|_| conversion.finds_by_route);
    found.iter().map(ClientAddress::plugin).collect()
}

/// Writes the peers that are trusted, and a global rule if the client's address is found in the same way everywhere. `node`: the
/// place whose directives apply to the whole node.
pub(super) fn carry_over(conversion: &mut Conversion, node: &BlockScope) {
    let mut lines = Vec::new();
    collect(conversion.http, &mut lines);
    let mut trusted: Vec<&str> = Vec::new();
    for line in lines.iter().filter(|line| line.argument(0) != "unix:") {
        match line.argument(0) {
            peer if !is_network(peer) => {
                conversion.lost(&line.place, format!("`{}`: only addresses and networks are trusted", line.head()));
            }
            peer if trusted.contains(&peer) => {}
            peer => trusted.push(peer),
        }
    }
    proxy_protocol(conversion);
    let of_node = ClientAddress::of(node);
    conversion.finds_by_route = differs_within(&conversion.scope(), &of_node);
    let Some(first) = lines.first().filter(|_| !trusted.is_empty()) else { return };
    conversion.converted.settings.push(("trusted_addresses".to_owned(), Yaml::texts(&trusted)));
    if conversion.finds_by_route {
        let text = "the servers and locations find the client's address in different ways: their routes have `real-ip`, and \
                    `trusted_addresses` has the peers of all of them";
        conversion.differs(&first.place, format!("`{}`: {text}", first.head()));
    } else if let Some(found) = of_node {
        let plugins = Yaml::Map(vec![found.plugin()]);
        let members = vec![("id".to_owned(), Yaml::text("client-address")), ("plugins".to_owned(), plugins)];
        conversion.converted.global_rules.push(ConvertedResource::new(&first.place, first.head(), members));
    }
}

/// Collects the lines of the blocks of HTTP, the outermost first.
fn collect<'a>(block: &'a [Directive], lines: &mut Vec<&'a Directive>) {
    lines.extend(block.iter().filter(|child| child.name == TRUSTED));
    inner(block).for_each(|child| collect(child.children(), lines));
}

fn inner(block: &[Directive]) -> impl Iterator<Item = &Directive> {
    block.iter().filter(|child| ["server", "location"].contains(&child.name.as_str()))
}

/// Whether a server or location finds the client's address in another way.
fn differs_within<'a>(scope: &BlockScope<'a>, of_node: &Option<ClientAddress<'a>>) -> bool {
    inner(scope.own()).any(|block| {
        let scope = scope.inside(block.children());
        ClientAddress::of(&scope) != *of_node || differs_within(&scope, of_node)
    })
}

/// Reports what is different for connections that begin with a header of the PROXY protocol: the address in it is that of the
/// connection.
fn proxy_protocol(conversion: &mut Conversion) {
    let http = conversion.scope();
    for server in conversion.http.iter().filter(|directive| directive.name == "server") {
        let scope = http.inside(server.children());
        let mut listens = server.children().iter().filter(|child| child.name == "listen");
        let has_header = |listen: &&Directive| listen.arguments.iter().any(|argument| argument == PROXY_PROTOCOL);
        let Some(listen) = listens.find(has_header) else { continue };
        let is_trusted = scope.all(TRUSTED).iter().any(|line| is_network(line.argument(0)));
        let field = scope.value("real_ip_header").unwrap_or(FIELD);
        let text = match is_trusted {
            false => "only peers in `trusted_addresses` may connect; there is no `set_real_ip_from` that names them"
                .to_owned(),
            true if field == PROXY_PROTOCOL => continue,
            true => format!(
                "the client's address is the one that the PROXY protocol names, also for `allow`, `deny` and limits; \
                 `{field}` is read if that address is trusted"
            ),
        };
        conversion.lost(&listen.place, format!("`{}`: {text}", listen.head()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    /// The result, and the findings that name what is different.
    fn told(http: &str) -> (String, Vec<String>) {
        let converted = convert("n", http, &|_| Ok(Vec::new())).expect("correct");
        (plain(&converted.yaml()), converted.findings.iter().map(ToString::to_string).collect())
    }

    /// On one line, without the marks of maps, so that it does not matter how long they are.
    fn plain(yaml: &str) -> String {
        yaml.replace(['{', '}', ','], " ").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    const RULE: &str =
        "real-ip: { source: http_x_forwarded_for, trusted_addresses: [\"10.0.0.0/8\"], recursive: true }";

    #[test]
    fn lists_and_limits_count_the_address_that_a_trusted_peer_names() {
        for (directives, rule) in [
            ("real_ip_header X-Forwarded-For; real_ip_recursive on;", RULE.to_owned()),
            ("real_ip_header X-Forwarded-For;", RULE.replace("true", "false")),
            ("", RULE.replace("forwarded_for", "real_ip").replace("true", "false")),
            (
                "real_ip_header CF-Connecting-IP;",
                RULE.replace("x_forwarded_for", "cf_connecting_ip").replace("true", "false"),
            ),
        ] {
            for text in [
                format!(
                    "set_real_ip_from 10.0.0.0/8; {directives} server {{ deny 11.0.0.0/8; location / {{ proxy_pass http://a; proxy_redirect off; }} }}"
                ),
                format!(
                    "server {{ set_real_ip_from 10.0.0.0/8; {directives} location / {{ proxy_pass http://a; proxy_redirect off; }} }}"
                ),
            ] {
                let (yaml, found) = told(&text);
                let rules = yaml.split("global_rules:").nth(1).and_then(|rest| rest.split("routes:").next());
                assert!(rules.is_some_and(|rules| rules.contains(&plain(&rule))), "{text}: {yaml}");
                assert_eq!(yaml.matches("real-ip:").count(), 1, "{yaml}");
                assert!(yaml.matches("trusted_addresses: [\"10.0.0.0/8\"]").count() == 2, "{yaml}");
                assert_eq!(found, [""; 0]);
            }
        }
    }

    #[test]
    fn servers_that_trust_others_have_the_plugin_in_their_routes() {
        let (yaml, found) = told(
            "server { server_name a; set_real_ip_from 10.0.0.0/8; real_ip_header X-Forwarded-For; real_ip_recursive on;
               if ($http_x) { return 403; } location / { proxy_pass http://a; }
               location /own { set_real_ip_from 172.16.0.1; proxy_pass http://a; } }
             server { server_name b; location / { proxy_pass http://a; } }",
        );
        // The first server is the default one, so its routes have no host.
        let route = |uri: &str, host: &str| {
            let mut routes = yaml.split(" - id: ").filter(|route| route.contains(&format!("uri: {uri} ")));
            routes.find(|route| route.contains("host: b") == (host == "b")).unwrap_or_default()
        };
        let rule = plain(RULE);
        assert!(!yaml.contains("global_rules"), "{yaml}");
        assert!(yaml.contains("trusted_addresses: [\"10.0.0.0/8\" \"172.16.0.1\"]"), "{yaml}");
        assert!(route("/*", "a").contains(&rule) && !route("/*", "b").contains("real-ip"), "{yaml}");
        let own = rule.replace("10.0.0.0/8", "172.16.0.1");
        assert!(route("/own*", "a").contains(&own) && !route("/own*", "a").contains(&rule), "{yaml}");
        assert_eq!(yaml.matches(&rule).count(), 2, "the `if` too: {yaml}");
        assert!(found.iter().any(|found| found.contains("find the client's address in different ways")), "{found:?}");
    }

    #[test]
    fn a_condition_on_an_address_that_is_found_later_closes_the_location() {
        let text = |trusted: &str| {
            format!(
                "{trusted} server {{ location / {{ if ($remote_addr = 11.0.0.1) {{ return 403; }} proxy_pass http://a; }} }}"
            )
        };
        let (yaml, found) = told(&text("set_real_ip_from 10.0.0.0/8;"));
        assert!(yaml.contains("http_status: 503") && !yaml.contains("[remote_addr"), "{yaml}");
        assert!(found.iter().any(|found| found.contains("before `real-ip` finds the client's")), "{found:?}");
        assert!(told(&text("")).0.contains(r#"[remote_addr "==" "11.0.0.1"]"#), "{}", told(&text("")).0);
        assert!(!told(&text("")).0.contains("http_status: 503"));
    }

    #[test]
    fn the_proxy_protocol_names_the_address_of_the_connection() {
        let server = |directives: &str| {
            told(&format!(
                "server {{ listen 80 proxy_protocol; {directives} location / {{ proxy_pass http://a; proxy_redirect off; }} }}"
            ))
        };
        let (yaml, found) = server("set_real_ip_from 10.0.0.0/8; real_ip_header proxy_protocol;");
        assert!(yaml.contains("trusted_addresses: [\"10.0.0.0/8\"]") && !yaml.contains("real-ip"), "{yaml}");
        assert_eq!(found, [""; 0]);
        let (_, found) = server("");
        assert!(found[0].contains("only peers in `trusted_addresses` may connect"), "{found:?}");
        let (_, found) = server("set_real_ip_from 10.0.0.0/8;");
        assert!(found[0].contains("not converted") && found[0].contains("`X-Real-IP` is read if"), "{found:?}");
    }
}
