//! `gzip` and `brotli` (module brotli), as the plugins of these names.

use super::Conversion;
use super::scope::{BlockScope, bytes};
use crate::yaml::Yaml;

/// The plugins for the compression in effect.
pub(super) fn plugins(conversion: &mut Conversion, scope: &BlockScope) -> Vec<(String, Yaml)> {
    if scope.is_on("gzip") {
        tell_proxied(conversion, scope);
    }
    let is_on = |name: &&str| scope.is_on(name);
    ["brotli", "gzip"].into_iter().filter(is_on).map(|name| plugin(scope, name)).collect()
}

fn plugin(scope: &BlockScope, name: &str) -> (String, Yaml) {
    let mut options = Vec::new();
    if let Some(types) = scope.last(&format!("{name}_types")) {
        let all = types.arguments.iter().any(|kind| kind == "*");
        let mut kinds = vec!["text/html".to_owned()];
        kinds.extend(types.arguments.iter().filter(|&kind| kind != "text/html").cloned());
        options.push(("types".to_owned(), if all { Yaml::text("*") } else { Yaml::texts(kinds) }));
    }
    for option in ["min_length", "comp_level"] {
        let number = scope.value(&format!("{name}_{option}")).and_then(bytes);
        // The level 0 of brotli is the fastest.
        let number = number.filter(|&number| number > 0 || (name, option) == ("brotli", "comp_level"));
        options.extend(number.map(|number| (option.to_owned(), Yaml::Integer(number))));
    }
    let window = scope.value("brotli_window").filter(|_| name == "brotli").and_then(bytes);
    options.extend(window.and_then(window_bits).map(|bits| ("lgwin".to_owned(), Yaml::Integer(bits))));
    (name.to_owned(), Yaml::Map(options))
}

/// The size of a window as a power of two.
fn window_bits(size: i64) -> Option<i64> {
    let bits = i64::from(size.max(1).ilog2());
    (1 << bits == size && (10..=24).contains(&bits)).then_some(bits)
}

fn tell_proxied(conversion: &mut Conversion, scope: &BlockScope) {
    match (scope.last("gzip_proxied"), scope.last("gzip")) {
        (Some(proxied), _) if proxied.argument(0) != "any" => {
            let text = "`gzip_proxied`: responses to requests with `Via` are also compressed";
            conversion.differs(&proxied.place, text);
        }
        (None, Some(gzip)) => {
            let text =
                "responses to requests with `Via` are also compressed; in nginx, `gzip_proxied` is off by default";
            conversion.differs_here_first("gzip_proxied", &gzip.place, text);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::convert;

    #[test]
    fn brotli_has_the_options_that_it_has_in_nginx() {
        let converted = |inside: &str| {
            let text =
                format!("server {{ proxy_redirect off; {inside} location / {{ proxy_pass http://10.0.0.1:1; }} }}");
            let converted = convert("t", &text, &|_| Ok(Vec::new())).expect("correct");
            let found: Vec<String> = converted.findings.iter().map(ToString::to_string).collect();
            (converted.yaml(), found)
        };
        let (yaml, found) = converted(
            "brotli on; brotli_types text/css; brotli_min_length 100; brotli_comp_level 0; brotli_window 256k; brotli_static on;",
        );
        let options = "brotli: { types: [text/html, text/css], min_length: 100, comp_level: 0, lgwin: 18 }";
        assert!(yaml.contains(options), "{yaml}");
        assert_eq!(found, [""; 0]);
        let (yaml, _) = converted("brotli on; gzip on; gzip_proxied any;");
        assert!(yaml.contains("brotli: {}") && yaml.contains("gzip: {}"), "{yaml}");
        assert!(!converted("brotli off;").0.contains("brotli"), "it is off");
    }
}
