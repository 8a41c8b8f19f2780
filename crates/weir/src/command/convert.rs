use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, Command, ValueEnum};
use weir_convert::{Converted, FindingKind, SyntaxError};

use crate::exit::{self, ExitFailure};
use crate::say::say;

/// Converts the configuration of another gateway to a configuration of Weir.
///
/// The converted file goes to standard output, or to a file. Settings that were not converted or behave differently are listed in comments at
/// its beginning and on standard error, each with its file and line. Use `weir check` and `weir explain` to examine the result.
#[derive(Debug, Args)]
pub(crate) struct ConvertCommand {
    /// The format of the file.
    #[arg(value_parser = DialectParser)]
    from: Dialect,
    /// The file to convert, or `-` for standard input. Included files are searched for relative to its directory. For `ingress`
    /// there may be several.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Writes to this file instead of standard output. A file that is there stays unchanged if nothing can be converted.
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Exits with 1 if a setting was not converted.
    #[arg(long)]
    deny_losses: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dialect {
    /// nginx.conf, or a file of conf.d.
    Nginx,
    /// A Caddyfile.
    Caddy,
    /// kong.yml: the declarative configuration of Kong and decK.
    Kong,
    /// config.yaml: the settings of an Apache APISIX node. An apisix.yaml needs no conversion.
    #[value(alias = "apisix")]
    ApisixConfig,
    /// A definition of an API: OpenAPI 3.0 or 3.1, as YAML or JSON.
    #[value(name = "openapi")]
    OpenApi,
    /// A definition of a streaming API: AsyncAPI 2 or 3, as YAML or JSON.
    #[value(name = "asyncapi")]
    AsyncApi,
    /// Ingresses of Kubernetes, with the annotations of ingress-nginx: manifests, as YAML or JSON.
    Ingress,
}

/// The gateways that a guide tells of in place of a converter.
const WITHOUT_CONVERTER: [&str; 2] = ["haproxy", "envoy"];

/// Whether a text is a configuration of nginx: it has one of its blocks, and ends directives as a Caddyfile never does.
fn is_of_nginx(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    let is_block = |line: &str| {
        let word = line.strip_suffix('{').map(str::trim_end);
        word.is_some_and(|word| matches!(word, "events" | "http" | "server" | "stream"))
    };
    lines.clone().any(is_block) && lines.any(|line| line.ends_with(';'))
}

/// What a file of another format than the one named is, and the command for it.
fn of_another(from: Dialect, name: &str, text: &str) -> Option<String> {
    let (is, format) = match from {
        Dialect::Nginx | Dialect::Caddy => match of_keys(text) {
            Some(found) => found,
            None if from == Dialect::Caddy && is_of_nginx(text) => ("is a configuration of nginx", Some("nginx")),
            None => return None,
        },
        _ if is_of_nginx(text) => ("is a configuration of nginx", Some("nginx")),
        _ => of_keys(text).filter(|(_, format)| format.is_some_and(|format| format != from.name()))?,
    };
    Some(match format {
        Some(format) => format!("{is}; convert it by `weir convert {format} {name}`"),
        None => format!("{is}, and no configuration of {}", from.name()),
    })
}

/// What a text of keys at the beginning of lines is, and its format: YAML or JSON, which neither nginx nor Caddy reads.
fn of_keys(text: &str) -> Option<(&'static str, Option<&'static str>)> {
    const FIRST_KEYS: [(&str, &str, &str); 4] = [
        ("_format_version", "is a declarative configuration of Kong", "kong"),
        ("openapi", "is a definition of OpenAPI", "openapi"),
        ("asyncapi", "is a definition of AsyncAPI", "asyncapi"),
        ("apiVersion", "is a manifest of Kubernetes", "ingress"),
    ];
    let keys = top_keys(text)?;
    let found = FIRST_KEYS.iter().find(|(key, _, _)| keys.iter().any(|known| known == key));
    Some(found.map_or(("is YAML or JSON", None), |(_, is, format)| (*is, Some(*format))))
}

/// The keys at the beginning of lines, or of a JSON object; `None` if the text has other lines there.
fn top_keys(text: &str) -> Option<Vec<String>> {
    if text.trim_start().starts_with('{') {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
        return Some(object.keys().cloned().collect());
    }
    let mut keys = Vec::new();
    let is_outermost = |line: &&str| !line.is_empty() && !line.starts_with([' ', '\t', '#', '-', '%', ']', '}', '\r']);
    for line in text.lines().filter(is_outermost) {
        let (key, rest) = line.split_once(':')?;
        let key = key.trim_matches(['"', '\'']);
        let is_key = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if !is_key
            || key.is_empty()
            || !(rest.is_empty() || rest.starts_with([' ', '\r']))
            || rest.trim_end().ends_with(" {")
        {
            return None;
        }
        keys.push(key.to_owned());
    }
    (!keys.is_empty()).then_some(keys)
}

impl Dialect {
    fn name(self) -> &'static str {
        match self {
            Dialect::Nginx => "nginx",
            Dialect::Caddy => "caddy",
            Dialect::Kong => "kong",
            Dialect::ApisixConfig => "apisix-config",
            Dialect::OpenApi => "openapi",
            Dialect::AsyncApi => "asyncapi",
            Dialect::Ingress => "ingress",
        }
    }
}

/// Parses the format. If a file name stands in its place, the error shows the command with a format before the file name.
#[derive(Clone)]
struct DialectParser;

impl TypedValueParser for DialectParser {
    type Value = Dialect;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<Dialect, clap::Error> {
        let formats = EnumValueParser::<Dialect>::new();
        formats.parse_ref(command, argument, value).map_err(|error| {
            let name = value.to_string_lossy();
            if WITHOUT_CONVERTER.contains(&&*name.to_lowercase()) {
                let problem = format!("there is no converter for `{name}`; docs/guide/from-haproxy-and-envoy.md shows how to write the same\n");
                return clap::Error::raw(ErrorKind::InvalidValue, problem).with_cmd(command);
            }
            if !name.contains(['.', '/']) && !Path::new(value).exists() {
                return error;
            }
            let (lower, names) = (name.to_lowercase(), formats.possible_values().into_iter().flatten());
            let likely = names.map(|format| format.get_name().to_owned()).find(|format| lower.contains(&**format));
            let format = likely.as_deref().unwrap_or("FORMAT");
            let problem = format!("the format stands before the file: `weir convert {format} {name}`\n");
            clap::Error::raw(ErrorKind::InvalidValue, problem).with_cmd(command)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Dialect::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

impl ConvertCommand {
    pub(crate) fn execute(self) -> ExitCode {
        if self.files.len() > 1 && self.from != Dialect::Ingress {
            say!("only `ingress` is converted from several files");
            return ExitFailure::Configuration.into();
        }
        let mut texts = Vec::new();
        for file in &self.files {
            match read(file) {
                Ok(text) => texts.push((file.display().to_string(), text)),
                Err(_) if file.is_dir() => {
                    say!("{}: is a directory; give the path of a file", file.display());
                    return ExitFailure::Configuration.into();
                }
                Err(error) => {
                    say!("{}: cannot be read: {error}", file.display());
                    return ExitFailure::Configuration.into();
                }
            }
        }
        for (name, text) in &texts {
            if let Some(problem) = of_another(self.from, name, text) {
                say!("{name}: {problem}");
                return ExitFailure::Configuration.into();
            }
        }
        let converted = match self.convert(&texts) {
            Ok(converted) => converted,
            Err(error) => {
                say!("{error}");
                return ExitFailure::Configuration.into();
            }
        };
        for finding in &converted.findings {
            say!("{finding}");
        }
        if let Err(problem) = self.write(&converted.yaml(), converted.holds_credentials()) {
            say!("{problem}");
            return ExitFailure::System.into();
        }
        let is_lossy = converted.findings.iter().any(|finding| finding.kind == FindingKind::Lost);
        if self.deny_losses && is_lossy { ExitFailure::Configuration.into() } else { exit::DONE }
    }

    /// A new file with credentials is one of its owner alone.
    fn write(&self, text: &str, has_credentials: bool) -> Result<(), String> {
        let Some(file) = &self.output else {
            return io::stdout()
                .write_all(text.as_bytes())
                .map_err(|error| format!("cannot write to standard output: {error}"));
        };
        let mode = if has_credentials { 0o600 } else { 0o666 };
        let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(file);
        opened
            .and_then(|mut opened| opened.write_all(text.as_bytes()))
            .map_err(|error| format!("{}: cannot be written: {error}", file.display()))
    }

    fn convert(&self, texts: &[(String, String)]) -> Result<Converted, SyntaxError> {
        let [(name, text), ..] = texts else { return Ok(Converted::default()) };
        let directory = Path::new(name).parent().unwrap_or(Path::new("."));
        match self.from {
            Dialect::Nginx => weir_convert::nginx::convert(name, text, &|pattern| included(directory, pattern)),
            Dialect::Caddy => weir_convert::caddy::convert(name, text, &|pattern| included(directory, pattern)),
            Dialect::Kong => weir_convert::kong::convert(name, text),
            Dialect::ApisixConfig => weir_convert::apisix::convert(name, text),
            Dialect::AsyncApi => weir_convert::asyncapi::convert(name, text),
            Dialect::OpenApi => weir_convert::openapi::convert(name, text),
            Dialect::Ingress => weir_convert::ingress::convert(texts),
        }
    }
}

/// The text of a file, or of standard input.
fn read(file: &Path) -> io::Result<String> {
    if file != Path::new("-") {
        return fs::read_to_string(file);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// The most bytes of an included file.
const MAX_INCLUDED: u64 = 16 << 20;

/// The text of an included file. A pipe or a device could keep the command waiting, or fill its memory; `/dev/null` is empty.
fn included_text(path: &Path) -> Result<String, String> {
    if path == Path::new("/dev/null") {
        return Ok(String::new());
    }
    let about = fs::metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("is not a regular file".to_owned());
    }
    if about.len() > MAX_INCLUDED {
        return Err(format!("has more than {} MiB", MAX_INCLUDED >> 20));
    }
    fs::read_to_string(path).map_err(|error| error.to_string())
}

/// The files that match a pattern, relative to the directory, sorted by name. A pattern with `*` may match none.
fn included(directory: &Path, pattern: &str) -> Result<Vec<(String, String)>, String> {
    let pattern = directory.join(pattern);
    let pattern = pattern.to_str().ok_or("the name is not UTF-8")?;
    let paths = glob::glob(pattern).map_err(|error| error.to_string())?;
    let read = |path: Result<PathBuf, glob::GlobError>| {
        let path = path.map_err(|error| error.to_string())?;
        let text = included_text(&path).map_err(|problem| format!("{}: {problem}", path.display()))?;
        Ok((path.display().to_string(), text))
    };
    let files = paths.map(read).collect::<Result<Vec<_>, String>>()?;
    let is_pattern = pattern.contains(['*', '?', '[']);
    if files.is_empty() && !is_pattern { Err("there is no such file".to_owned()) } else { Ok(files) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_format_names_the_command_that_is_right() {
        let nginx = "http {\n  server {\n    listen 80;\n  }\n}\n";
        let caddy = "example.com:8080 {\n  reverse_proxy a:1\n}\n";
        let kong = "_format_version: \"3.0\"\nservices: []\n";
        let apisix = "routes:\n- uri: /a\n#END\n";
        for (from, text, expected) in [
            (Dialect::Nginx, kong, Some("is a declarative configuration of Kong; convert it by `weir convert kong f`")),
            (Dialect::Caddy, kong, Some("is a declarative configuration of Kong; convert it by `weir convert kong f`")),
            (
                Dialect::ApisixConfig,
                kong,
                Some("is a declarative configuration of Kong; convert it by `weir convert kong f`"),
            ),
            (Dialect::Caddy, nginx, Some("is a configuration of nginx; convert it by `weir convert nginx f`")),
            (Dialect::Kong, nginx, Some("is a configuration of nginx; convert it by `weir convert nginx f`")),
            (
                Dialect::Kong,
                "{\"openapi\": \"3.0.0\"}",
                Some("is a definition of OpenAPI; convert it by `weir convert openapi f`"),
            ),
            (Dialect::Nginx, apisix, Some("is YAML or JSON, and no configuration of nginx")),
            (
                Dialect::Caddy,
                "services:\n  web: { image: nginx }\n",
                Some("is YAML or JSON, and no configuration of caddy"),
            ),
            (Dialect::Nginx, nginx, None),
            (Dialect::Caddy, caddy, None),
            (Dialect::Caddy, "localhost: {\n}\n", None),
            (Dialect::Caddy, "example.com\nreverse_proxy a:1\n", None),
            (Dialect::Kong, kong, None),
            (Dialect::ApisixConfig, "apisix: {}\n", None),
            (Dialect::Ingress, "apiVersion: v1\nkind: List\n---\napiVersion: v1\n", None),
        ] {
            assert_eq!(of_another(from, "f", text).as_deref(), expected, "{from:?} {text}");
        }
    }
}
