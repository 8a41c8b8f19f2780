//! The media type of a text that nginx answers with: that of the extension of the path (`types`), or else `default_type`.

use super::scope::BlockScope;

/// The directives that decide.
pub(super) const DECIDING: [&str; 2] = ["types", "default_type"];

/// What nginx knows without `types`.
const BUILT_IN: [(&str, &str); 3] = [("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")];

/// What texts have in the `mime.types` of nginx, in place of a file that is not there.
pub(super) const COMMON: &str = "types { text/html html htm shtml; text/css css; text/xml xml; text/plain txt; \
     application/javascript js; application/json json; application/rss+xml rss; application/atom+xml atom; image/svg+xml svg svgz; }";

/// The media type of a text for this path; `None` for a path that is not known.
pub(super) fn of_text<'a>(scope: &BlockScope<'a>, path: Option<&str>) -> &'a str {
    let of_extension = path.and_then(extension).and_then(|extension| of_extension(scope, &extension));
    of_extension.or_else(|| scope.value("default_type")).unwrap_or("text/plain")
}

/// The extension of the last segment, in lower case. A segment that begins with its only dot has none.
fn extension(path: &str) -> Option<String> {
    let segment = path.rsplit('/').next()?;
    let (name, extension) = segment.rsplit_once('.')?;
    (!name.is_empty() && !extension.is_empty()).then(|| extension.to_ascii_lowercase())
}

fn of_extension<'a>(scope: &BlockScope<'a>, extension: &str) -> Option<&'a str> {
    let types = scope.all("types");
    if types.is_empty() {
        return BUILT_IN.iter().find(|(known, _)| *known == extension).map(|(_, kind)| *kind);
    }
    // The last line for an extension is in effect.
    let kinds = types.iter().flat_map(|types| types.children()).rev();
    let of_extension =
        |line: &&'a super::syntax::Directive| line.arguments.iter().any(|known| known.eq_ignore_ascii_case(extension));
    kinds.into_iter().find(of_extension).map(|line| line.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    #[test]
    fn texts_have_the_type_of_the_extension_or_else_the_default() {
        let kind = |http: &str, server: &str, path: &str| {
            let [http, server] = [http, server].map(|text| parse("n", text).expect("correct"));
            let scope = BlockScope::new(&http).inside(&server);
            of_text(&scope, Some(path).filter(|path| !path.is_empty())).to_owned()
        };
        let default = "default_type application/octet-stream;";
        assert_eq!(kind("", "", "/a"), "text/plain");
        assert_eq!(kind(default, "", "/a.HTML"), "text/html", "nginx knows it by itself");
        assert_eq!(kind(default, "", "/a.css"), "application/octet-stream");
        assert_eq!(kind(default, "", ""), "application/octet-stream");
        let types = format!("{default} types {{ text/html html; text/css css; a/b css; }}");
        assert_eq!(kind(&types, "", "/x.y/a.css"), "a/b");
        for path in ["/a.jpg", "/.css", "/a.css/b", "/a.", "/"] {
            assert_eq!(kind(&types, "", path), "application/octet-stream", "{path}");
        }
        assert_eq!(kind(&types, "types { text/x css; }", "/a.css"), "text/x");
        assert_eq!(
            kind(&types, "types { }", "/a.css"),
            "application/octet-stream",
            "inner ones replace all outer ones"
        );
        assert_eq!(kind(&format!("{default} {COMMON}"), "", "/robots.txt"), "text/plain");
    }
}
