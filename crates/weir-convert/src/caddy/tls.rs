//! Converts `tls` and automatic certificates to `ssls` and the setting `acme`.

use super::address::{SiteAddress, is_public};
use super::options::GlobalOptions;
use crate::SourcePlace;
use crate::directive::Directive;
use crate::output::{Converted, ConvertedResource};
use crate::yaml::{Yaml, YamlMembers};

/// The certificate settings of a site.
#[derive(Default)]
struct SiteTls<'a> {
    files: Option<(&'a str, &'a str)>,
    is_internal: bool,
    members: YamlMembers,
}

/// Converts the certificates of a site.
pub(super) fn carry_over(
    converted: &mut Converted,
    options: &mut GlobalOptions,
    site: &Directive,
    addresses: &[SiteAddress],
) {
    let mut read = SiteTls::default();
    let directive = site.children().iter().find(|child| child.name == "tls");
    if let Some(directive) = directive {
        read.arguments(options, directive);
        directive.children().iter().for_each(|line| read.line(converted, options, line));
    }
    let mut hosts: Vec<&str> = Vec::new();
    for address in addresses.iter().filter(|address| address.is_https) {
        if !hosts.contains(&address.host.as_str()) {
            hosts.push(&address.host);
        }
    }
    if hosts.is_empty() {
        return;
    }
    let place = directive.map_or(&site.place, |directive| &directive.place);
    if let Some((cert, key)) = read.files {
        let snis = hosts.iter().map(|host| if host.is_empty() { "*" } else { host });
        let mut members = vec![
            ("snis".to_owned(), Yaml::texts(snis)),
            ("cert".to_owned(), Yaml::text(cert)),
            ("key".to_owned(), Yaml::text(key)),
        ];
        members.append(&mut read.members);
        converted.ssls.push(ConvertedResource::new(place, "tls", members));
        return;
    }
    if !read.members.is_empty() {
        converted.lost(
            place,
            "`tls`: versions and client certificates belong to an entry of `ssls`, which needs `cert` and `key`",
        );
    }
    let (ordered, others): (Vec<&str>, Vec<&str>) =
        hosts.into_iter().partition(|host| is_public(host) && !read.is_internal && options.has_certificates);
    if !others.is_empty() {
        report_missing_certificates(converted, place, &others);
    }
    add_to_acme(converted, options, &ordered);
}

/// Reports hosts without a certificate.
fn report_missing_certificates(converted: &mut Converted, place: &SourcePlace, hosts: &[&str]) {
    let names: Vec<_> = hosts.iter().map(|host| if host.is_empty() { "every host" } else { host }).collect();
    let text = format!("a certificate for {}: add an entry to `ssls` with `cert` and `key`", names.join(", "));
    converted.lost(place, text);
}

/// Adds hosts to `acme`.
fn add_to_acme(converted: &mut Converted, options: &GlobalOptions, hosts: &[&str]) {
    if hosts.is_empty() {
        return;
    }
    let known = converted.settings.iter().position(|(name, _)| name == "acme");
    let mut all: Vec<Yaml> = Vec::new();
    if let Some(position) = known
        && let (_, Yaml::Map(members)) = converted.settings.remove(position)
        && let Some((_, Yaml::List(known))) = members.into_iter().next()
    {
        all = known;
    }
    for host in hosts.iter().copied().map(Yaml::text) {
        if !all.contains(&host) {
            all.push(host);
        }
    }
    let mut members = vec![("hosts".to_owned(), Yaml::List(all))];
    members.push(("terms_of_service_agreed".to_owned(), Yaml::Boolean(true)));
    members.extend(options.acme.iter().cloned());
    converted.settings.push(("acme".to_owned(), Yaml::Map(members)));
}

impl<'a> SiteTls<'a> {
    fn arguments(&mut self, options: &mut GlobalOptions, directive: &'a Directive) {
        match directive.arguments.as_slice() {
            [cert, key] => self.files = Some((cert, key)),
            [word] if word == "internal" => self.is_internal = true,
            [email] if email.contains('@') => set_acme(options, "email", email),
            _ => {}
        }
    }

    fn line(&mut self, converted: &mut Converted, options: &mut GlobalOptions, line: &'a Directive) {
        match line.name.as_str() {
            "protocols" => {
                let versions = match (line.argument(0), line.argument(1)) {
                    ("tls1.3", _) => vec!["TLSv1.3"],
                    ("tls1.2", "tls1.2") => vec!["TLSv1.2"],
                    _ => vec!["TLSv1.2", "TLSv1.3"],
                };
                self.members.push(("ssl_protocols".to_owned(), Yaml::texts(versions)));
            }
            "ca" => set_acme(options, "directory", line.argument(0)),
            "ca_root" => set_acme(options, "ca", line.argument(0)),
            "client_auth" => self.client(converted, line),
            "ciphers" | "curves" => {
                let text =
                    format!("`{}`: ciphers are those of Mozilla's intermediate profile and cannot be set", line.head());
                converted.lost(&line.place, text);
            }
            "issuer" if line.argument(0) == "internal" => self.is_internal = true,
            "issuer" if line.argument(0) == "acme" => {
                line.children().iter().for_each(|line| match line.name.as_str() {
                    "email" => set_acme(options, "email", line.argument(0)),
                    "dir" => set_acme(options, "directory", line.argument(0)),
                    _ => converted.lost(&line.place, format!("`{}` in `issuer acme`", line.head())),
                });
            }
            "dns" => converted.lost(&line.place, "`dns`: certificates are ordered with http-01 or tls-alpn-01"),
            "on_demand" => {
                converted
                    .lost(&line.place, "`on_demand`: certificates are ordered for the hosts that `acme.hosts` names");
            }
            "alpn" => {}
            _ => converted.lost(&line.place, format!("`{}` in `tls`", line.head())),
        }
    }

    /// Requires verified client certificates.
    fn client(&mut self, converted: &mut Converted, line: &Directive) {
        let of = |name: &str| line.children().iter().find(|child| child.name == name).map(|child| child.argument(0));
        match (of("trusted_ca_cert_file"), of("mode").unwrap_or("require_and_verify")) {
            (Some(ca), "require_and_verify") => {
                self.members.push(("client".to_owned(), Yaml::map([("ca", Yaml::text(ca))])));
            }
            _ => {
                let text = "`client_auth`: `client.ca` of an entry in `ssls` needs the file of an authority, and all clients a certificate";
                converted.lost(&line.place, text);
            }
        }
    }
}

/// Sets an option of `acme`, which is common to all sites.
fn set_acme(options: &mut GlobalOptions, name: &str, value: &str) {
    options.acme.retain(|(known, _)| known != name);
    options.acme.push((name.to_owned(), Yaml::text(value)));
}
