//! Directives that authenticate, limit or compress, as plugins.

use super::state::RequestState;
use super::steps::SiteWalk;
use super::units::bytes;
use crate::directive::Directive;
use crate::output::ConvertedResource;
use crate::yaml::{Yaml, YamlMembers};

/// The common ones of the media types that Caddy compresses by default.
const COMPRESSED: [&str; 10] = [
    "text/html",
    "text/plain",
    "text/css",
    "text/xml",
    "text/javascript",
    "application/json",
    "application/javascript",
    "application/xml",
    "application/wasm",
    "image/svg+xml",
];

/// The least bytes of a response that Caddy compresses by default.
const MIN_LENGTH: i64 = 512;

impl SiteWalk<'_, '_> {
    /// `encode gzip zstd`.
    pub(super) fn encode(&mut self, state: &mut RequestState, directive: &Directive, arguments: &[String]) {
        let mut formats: Vec<(String, Option<i64>)> = arguments.iter().map(|name| (name.clone(), None)).collect();
        let mut min_length = MIN_LENGTH;
        for line in directive.children() {
            match line.name.as_str() {
                "gzip" | "zstd" | "br" => formats.push((line.name.clone(), line.argument(0).parse().ok())),
                "minimum_length" => min_length = line.argument(0).parse().unwrap_or(min_length),
                _ => self.converted.lost(&line.place, format!("`{}` in `encode`", line.head())),
            }
        }
        if formats.is_empty() {
            formats.push(("gzip".to_owned(), None));
        }
        let mut options = vec![("types", Yaml::texts(COMPRESSED)), ("min_length", Yaml::Integer(min_length))];
        for (format, level) in formats {
            let plugin = match format.as_str() {
                "gzip" => "gzip",
                "br" => "brotli",
                "zstd" => {
                    self.converted
                        .differs(&directive.place, "`zstd`: not supported; these clients get another encoding");
                    continue;
                }
                other => {
                    self.converted.lost(&directive.place, format!("`{other}` in `encode`"));
                    continue;
                }
            };
            options.truncate(2);
            options.extend(level.map(|level| ("comp_level", Yaml::Integer(level.clamp(1, 9)))));
            let members = options.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            state.policies.retain(|(name, _)| name != plugin);
            state.policies.push((plugin.to_owned(), Yaml::Map(members)));
        }
    }

    /// `request_body { max_size 10MB }`.
    pub(super) fn request_body(&mut self, state: &mut RequestState, directive: &Directive) {
        for line in directive.children() {
            match (line.name.as_str(), bytes(line.argument(0))) {
                ("max_size", Some(size)) => {
                    state.policies.retain(|(name, _)| name != "client-control");
                    let options = Yaml::map([("max_body_size", Yaml::Integer(size))]);
                    state.policies.insert(0, ("client-control".to_owned(), options));
                }
                _ => self.converted.lost(&line.place, format!("`{}` in `request_body`", line.head())),
            }
        }
    }

    /// `basic_auth [bcrypt [REALM]] { NAME HASH ... }`.
    pub(super) fn basic_auth(
        &mut self,
        state: &mut RequestState,
        directive: &Directive,
        arguments: &[String],
    ) -> Result<(), String> {
        if !state.auth.is_empty() {
            return Err("a second login for the same requests".to_owned());
        }
        if arguments.first().is_some_and(|algorithm| algorithm != "bcrypt") {
            return Err("only hashes of bcrypt and argon2id are supported".to_owned());
        }
        let mut names = Vec::new();
        for line in directive.children() {
            names.push(self.consumer(line)?);
        }
        let realm = arguments.get(1).map_or("restricted", String::as_str);
        // Caddy passes the credentials on to the upstream as well.
        let options = [("realm", Yaml::text(realm)), ("hide_credentials", Yaml::Boolean(false))];
        state.auth.push(("basic-auth".to_owned(), Yaml::map(options)));
        state.auth.push(("consumer-restriction".to_owned(), Yaml::map([("whitelist", Yaml::texts(names))])));
        Ok(())
    }

    /// Adds the consumer with this password, if it does not exist. Returns its name.
    fn consumer(&mut self, line: &Directive) -> Result<String, String> {
        let (user, hash) = (line.name.as_str(), line.argument(0));
        if !["$2a$", "$2b$", "$2y$", "$argon2id$", "${{"].iter().any(|begin| hash.starts_with(begin)) {
            return Err(format!("the password of `{user}` is not a hash of bcrypt or argon2id"));
        }
        let name: String = user
            .chars()
            .map(|char| if char.is_ascii_alphanumeric() || "-_".contains(char) { char } else { '_' })
            .collect();
        let login = Yaml::map([("username", Yaml::text(user)), ("password", Yaml::text(hash))]);
        let members: YamlMembers = vec![
            ("username".to_owned(), Yaml::text(&name)),
            ("plugins".to_owned(), Yaml::map([("basic-auth", login)])),
        ];
        let known = self.converted.consumers.iter().find(|consumer| consumer.members[0] == members[0]);
        match known {
            Some(known) if known.members == members => {}
            Some(_) => return Err(format!("`{user}` has two passwords; a consumer has one")),
            None => {
                let item = ConvertedResource::new(&line.place, format!("user {user}"), members);
                self.converted.consumers.push(item);
            }
        }
        Ok(name)
    }

    /// `forward_auth SERVICE { uri /path copy_headers NAME... }`.
    pub(super) fn forward_auth(
        &mut self,
        state: &mut RequestState,
        directive: &Directive,
        arguments: &[String],
    ) -> Result<(), String> {
        let [service] = arguments else {
            return Err("`forward_auth` takes the address of exactly one service".to_owned());
        };
        let service = match service.as_str() {
            service if service.contains("://") => service.trim_end_matches('/').to_owned(),
            service if service.starts_with(':') => format!("http://127.0.0.1{service}"),
            service => format!("http://{service}"),
        };
        let (mut path, mut copied) = ("/".to_owned(), Vec::new());
        for line in directive.children() {
            match line.name.as_str() {
                "uri" => path = line.argument(0).to_owned(),
                "copy_headers" => {
                    copied.extend(line.arguments.iter().cloned());
                    copied.extend(line.children().iter().map(Directive::head));
                }
                _ => return Err(format!("`{}` in `forward_auth`", line.head())),
            }
        }
        if copied.iter().any(|name| name.contains(['>', ' ']))
            || path.contains('{')
            || state.auth.iter().any(|(name, _)| name == "forward-auth")
        {
            return Err("only one service, a fixed path and fields that keep their names are converted".to_owned());
        }
        let text =
            "`forward_auth`: the service gets the fields of the request that `request_headers` names, not all of them";
        self.converted.differs(&directive.place, text);
        let mut options = vec![
            ("uri".to_owned(), Yaml::text(format!("{service}{path}"))),
            ("request_headers".to_owned(), Yaml::texts(["Authorization", "Cookie", "Accept"])),
        ];
        if !copied.is_empty() {
            options.push(("upstream_headers".to_owned(), Yaml::texts(copied)));
        }
        options.push(("client_headers".to_owned(), Yaml::texts(["Location", "Set-Cookie", "WWW-Authenticate"])));
        state.auth.push(("forward-auth".to_owned(), Yaml::Map(options)));
        Ok(())
    }
}
