//! `mirror`, as `proxy-mirror`: the location that it names passes the copies on.

use super::Conversion;
use super::scope::BlockScope;
use super::subrequest;
use super::syntax::Directive;
use super::target::PassTarget;
use crate::yaml::{Yaml, YamlMembers};

const MIRROR: &str = "mirror";
/// The fields that a location of copies may set: copies have them so anyway.
const USUAL_FIELDS: [(&str, &str); 4] = [
    ("content-length", ""),
    ("x-real-ip", "$remote_addr"),
    ("x-forwarded-for", "$proxy_add_x_forwarded_for"),
    ("x-forwarded-proto", "$scheme"),
];
/// The most services that get copies.
const TARGETS: usize = 16;

/// The plugin for the mirrors in effect at this place.
pub(super) fn plugin(conversion: &mut Conversion, scope: &BlockScope) -> Option<(String, Yaml)> {
    let mirrors: Vec<&Directive> = scope.all(MIRROR).into_iter().filter(|mirror| mirror.argument(0) != "off").collect();
    let mut targets = Vec::new();
    for mirror in &mirrors {
        match target(conversion, scope, mirror) {
            Some(target) if targets.len() < TARGETS => targets.push(target),
            _ => {
                let why = subrequest::obstacle(conversion, scope.server(), mirror.argument(0));
                let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
                let text =
                    format!("`{}`: write `proxy-mirror` with the service that gets the copies{why}", mirror.head());
                conversion.lost(&mirror.place, text);
            }
        }
    }
    let first = mirrors.first().filter(|_| !targets.is_empty())?;
    let has_body = match scope.value("mirror_request_body") {
        Some("off") => ", and have the body of the request, which `mirror_request_body off` leaves out",
        _ => "",
    };
    let text = format!(
        "`{}`: copies have the fields that the upstream gets{has_body}; those with a body of more than 1 MiB, and more than 128 at a \
         time in a worker, are dropped",
        first.head()
    );
    conversion.differs(&first.place, text);
    let options = match targets.len() {
        1 => targets.remove(0),
        _ => vec![("targets".to_owned(), Yaml::List(targets.into_iter().map(Yaml::Map).collect()))],
    };
    Some(("proxy-mirror".to_owned(), Yaml::Map(options)))
}

/// Where the copies of a mirror go: a host and a path, and the `Host` that they have. `None` if the location decides more than that.
fn target(conversion: &mut Conversion, scope: &BlockScope, mirror: &Directive) -> Option<YamlMembers> {
    let location = subrequest::location(scope.server(), mirror.argument(0))?;
    let pass = location.children().iter().find(|child| child.name == "proxy_pass")?;
    // `$request_uri` is the path and the query of the request that is copied.
    let written = pass.argument(0);
    let (base, has_path) = match written.strip_suffix("$request_uri") {
        Some(base) => (base, true),
        None => (written, false),
    };
    let plain = Directive { arguments: vec![base.to_owned()], ..pass.clone() };
    let target = PassTarget::of(&plain).filter(|target| target.scheme.starts_with("http") && !base.contains('$'))?;
    let authority = subrequest::authority(conversion, &target)?;
    let mut members = vec![("host".to_owned(), Yaml::text(format!("{}://{authority}", target.scheme)))];
    let path = target.path.unwrap_or_default().trim_end_matches('/').to_owned();
    if has_path {
        if !path.is_empty() {
            members.push(("path".to_owned(), Yaml::text(path)));
            members.push(("path_concat_mode".to_owned(), Yaml::text("prefix")));
        }
    } else {
        // A copy to `/` cannot be written.
        let path = subrequest::path(&target, location, mirror.argument(0));
        members.push(("path".to_owned(), Yaml::text(Some(path).filter(|path| path.len() > 1)?)));
    }
    let inside = scope.of_server().inside(location.children());
    let fields = inside.all("proxy_set_header");
    let named = |name: &str| fields.iter().rfind(|field| field.argument(0).eq_ignore_ascii_case(name));
    match named("host").map(|host| host.argument(1)) {
        None | Some("$proxy_host") => members.push(("host_header".to_owned(), Yaml::text(target.authority))),
        Some("$host" | "$http_host") => tell_host(conversion, scope, mirror),
        Some(host) if !host.contains('$') => members.push(("host_header".to_owned(), Yaml::text(host))),
        Some(_) => return None,
    }
    let of_upstream = scope.all("proxy_set_header");
    let is_usual = |field: &&&Directive| {
        let (name, value) = (field.argument(0).to_ascii_lowercase(), field.argument(1));
        let is_same = |other: &&Directive| other.argument(0).eq_ignore_ascii_case(&name) && other.argument(1) == value;
        name == "host" || USUAL_FIELDS.contains(&(&name, value)) || of_upstream.iter().any(is_same)
    };
    for field in fields.iter().filter(|field| !is_usual(field)) {
        conversion.lost(&field.place, format!("`{}`: copies have the fields that the upstream gets", field.head()));
    }
    if target.scheme == "https" && !inside.is_on("proxy_ssl_verify") {
        let text = "the certificate of the service that gets the copies is verified";
        conversion.differs(&pass.place, format!("`{}`: {text}", pass.head()));
    }
    Some(members)
}

/// Reports that copies do not have the `Host` of the client if the upstream gets another one.
fn tell_host(conversion: &mut Conversion, scope: &BlockScope, mirror: &Directive) {
    let is_host = |field: &&Directive| field.argument(0).eq_ignore_ascii_case("host");
    let host = scope.all("proxy_set_header").into_iter().rfind(is_host);
    if host.is_none_or(|host| !["$host", "$http_host"].contains(&host.argument(1))) {
        let text = format!("`{}`: copies have the `Host` that the upstream gets, not the client's", mirror.head());
        conversion.differs(&mirror.place, text);
    }
}

/// Whether a location gets the copies of one of the blocks of a server.
pub(super) fn is_for_copies(server: &[Directive], location: &Directive) -> bool {
    subrequest::is_named(server, location, MIRROR)
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    /// The plugin of the location `/`, and the findings about copies.
    fn converted(mirror: &str, location: &str) -> (String, Vec<String>) {
        let text = format!(
            "upstream two {{ server 10.0.0.2:80; server 10.0.0.3:80; }} upstream one {{ server 10.0.0.4:81; }}
             server {{ proxy_redirect off; location / {{ {mirror} proxy_pass http://a; }} {location} }}"
        );
        let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
        let found = converted.findings.iter().map(ToString::to_string);
        let yaml = converted.yaml().replace(['{', '}', '"', ','], " ").split_whitespace().collect::<Vec<_>>().join(" ");
        let options = yaml.split_once("proxy-mirror: ").map_or("", |(_, options)| options);
        let end = options.find(" # t:").unwrap_or(options.len());
        (options[..end].to_owned(), found.collect())
    }

    #[test]
    fn copies_go_where_the_location_passes_them() {
        for (location, expected) in [
            ("proxy_pass http://10.0.0.9:80$request_uri;", "host: http://10.0.0.9:80 host_header: 10.0.0.9:80"),
            ("proxy_pass http://one$request_uri; proxy_set_header Host $host;", "host: http://10.0.0.4:81"),
            (
                "proxy_pass http://10.0.0.9/test$request_uri; proxy_set_header Host copy.example;",
                "host: http://10.0.0.9 path: /test path_concat_mode: prefix host_header: copy.example",
            ),
            ("proxy_pass http://10.0.0.9;", "host: http://10.0.0.9 path: /mirror host_header: 10.0.0.9"),
        ] {
            let (options, found) =
                converted("mirror /mirror;", &format!("location = /mirror {{ internal; {location} }}"));
            assert_eq!(options, expected, "{location}");
            assert!(found.iter().all(|found| found.contains("copies have the ")), "{found:?}");
            let is_told = found.iter().any(|found| found.contains("copies have the `Host` that the upstream gets"));
            assert_eq!(is_told, location.contains("Host $host"), "{location}");
        }
    }

    #[test]
    fn several_services_get_copies_and_bodies_are_told() {
        let locations = "location = /a { internal; proxy_pass http://10.0.0.8$request_uri; }
                         location = /b { internal; proxy_pass http://10.0.0.9$request_uri; }";
        let (options, found) = converted("mirror /a; mirror /b; mirror_request_body off;", locations);
        assert_eq!(options.matches("host: http://").count(), 2, "{options}");
        assert!(options.starts_with("targets:"), "{options}");
        assert!(found.iter().any(|found| found.contains("`mirror_request_body off` leaves out")), "{found:?}");
    }

    #[test]
    fn fields_that_copies_do_not_have_are_told() {
        for (field, of_upstream, is_told) in [
            ("X-Original-URI $request_uri", "", true),
            ("X-Real-IP 10.0.0.1", "", true),
            ("X-Real-IP $remote_addr", "", false),
            ("X-Original-URI $request_uri", "X-Original-URI $request_uri", false),
        ] {
            let location = format!(
                "location = /m {{ internal; proxy_pass http://10.0.0.9$request_uri; proxy_set_header {field}; }}"
            );
            let set = if of_upstream.is_empty() { String::new() } else { format!("proxy_set_header {of_upstream};") };
            let (_, found) = converted(&format!("mirror /m; {set}"), &location);
            let told = format!("`proxy_set_header {field}`: copies have");
            assert_eq!(found.iter().any(|found| found.contains(&told)), is_told, "{field}: {found:?}");
        }
    }

    #[test]
    fn a_location_that_decides_is_told_and_sends_no_copies() {
        for location in [
            "location = /mirror { internal; if ($http_x) { return 204; } proxy_pass http://10.0.0.9$request_uri; }",
            "location = /mirror { internal; proxy_pass http://two$request_uri; }",
            "location = /mirror { internal; proxy_pass http://$host$request_uri; }",
        ] {
            let (options, found) = converted("mirror /mirror;", location);
            assert_eq!(options, "", "{location}");
            assert!(found.iter().any(|found| found.contains("`mirror /mirror`: write `proxy-mirror`")), "{found:?}");
        }
    }
}
