//! A definition, compiled: which operation a request is, and what that takes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;
use weir_plugin::{Exchange, Interner, pattern_budget};

use super::body::DeclaredBody;
use super::document::{OasDocument, SpecFaults, below};
use super::parameter::{DeclaredParameter, ParameterPlace};
use super::responses::DeclaredResponses;
use super::schemas::{OasSchemas, SchemaCollection};
use super::template::{PathTemplate, segments};
use crate::content::quoted;

/// The most operations of a definition, at all its servers.
const MOST_OPERATIONS: usize = 5_000;
/// The most parameters of an operation, with those of its path, and of all operations.
const MOST_PARAMETERS: usize = 256;
const MOST_PARAMETERS_IN_ALL: usize = 50_000;
/// The most bytes of the URL of a server, and of the value of a variable in it.
const MOST_URL: usize = 2_048;
const MOST_VALUE: usize = 256;
/// The most base paths of one operation.
const MOST_SERVERS: usize = 20;
/// How many bytes a definition takes for each byte of its text: about what parsed schemas and parameters do.
const BYTES_PER_CHARACTER: usize = 16;
/// The methods that a path has operations for (OpenAPI "Path Item Object").
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// An operation of a definition.
#[derive(Debug)]
pub(super) struct OasOperation {
    pub parameters: Vec<DeclaredParameter>,
    /// The names of its parameters in the query.
    pub arguments: Vec<String>,
    pub body: Option<DeclaredBody>,
    /// Empty if they are not validated.
    pub responses: DeclaredResponses,
}

/// A path with its operations, at one server.
#[derive(Debug)]
struct DefinedPath {
    template: PathTemplate,
    operations: Vec<(&'static str, Arc<OasOperation>)>,
}

/// A compiled definition.
#[derive(Debug)]
pub(super) struct ApiDefinition {
    pub schemas: OasSchemas,
    /// By the number of their segments, the most specific first.
    paths: HashMap<usize, Vec<DefinedPath>>,
    /// The memory that it takes, roughly.
    pub bytes: usize,
}

/// The operation that a request is, with the values in its path.
pub(super) struct FoundOperation<'a> {
    pub operation: &'a Arc<OasOperation>,
    pub values: Vec<(&'a str, String)>,
}

/// Why a request is no operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoOperation {
    Path,
    Method,
}

/// The definitions in use, by their texts, and whether their responses are read.
static DEFINITIONS: Interner<(String, bool), ApiDefinition> = Interner::new();

impl ApiDefinition {
    /// The definition with this text, which all that have the same share.
    ///
    /// # Errors
    /// Those of [`ApiDefinition::compile`].
    pub(super) fn shared(text: String, with_responses: bool) -> Result<Arc<ApiDefinition>, Vec<String>> {
        DEFINITIONS.get_or_build((text, with_responses), |(text, _)| ApiDefinition::compile(text, with_responses))
    }

    /// Compiles a definition in JSON or YAML, with the responses of its operations or without.
    ///
    /// # Errors
    /// All faults, up to a bound.
    fn compile(text: &str, with_responses: bool) -> Result<ApiDefinition, Vec<String>> {
        let before = pattern_budget::left();
        let document = OasDocument::read(text).map_err(|problem| vec![problem])?;
        let mut reading = DefinitionReading {
            document: &document,
            schemas: SchemaCollection::of(&document),
            faults: SpecFaults::default(),
            paths: BTreeMap::new(),
            count: 0,
            parameters: 0,
            with_responses,
        };
        reading.read_paths();
        let DefinitionReading { schemas, mut faults, paths, .. } = reading;
        let schemas = if faults.0.is_empty() { schemas.compile(&mut faults) } else { None };
        let Some(schemas) = schemas else { return Err(faults.0) };
        let mut sorted: HashMap<usize, Vec<DefinedPath>> = HashMap::new();
        for path in paths.into_values() {
            sorted.entry(path.template.segment_count()).or_default().push(path);
        }
        sorted.values_mut().for_each(|paths| paths.sort_by_cached_key(|path| path.template.rank()));
        let patterns = before.zip(pattern_budget::left()).map_or(0, |(before, left)| before.saturating_sub(left));
        Ok(ApiDefinition { schemas, paths: sorted, bytes: text.len() * BYTES_PER_CHARACTER + patterns })
    }

    /// The operation that an exchange is.
    ///
    /// # Errors
    /// If it is none.
    pub(super) fn operation(&self, exchange: &Exchange) -> Result<&Arc<OasOperation>, NoOperation> {
        let request = &exchange.request;
        Ok(self.find(request.client_method_name(), request.client_path())?.operation)
    }

    /// The operation of a request. HEAD is judged as GET if it has no operation of its own (RFC 9110 §9.3.2).
    ///
    /// # Errors
    /// If no path fits, or those that do have no operation for the method.
    pub(super) fn find(&self, method: &[u8], path: &[u8]) -> Result<FoundOperation<'_>, NoOperation> {
        let path = segments(path);
        let mut missing = NoOperation::Path;
        for defined in self.paths.get(&path.len()).into_iter().flatten() {
            let Some(values) = defined.template.fit(&path) else { continue };
            let of = |method: &[u8]| {
                let mut operations = defined.operations.iter();
                operations.find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(method)).map(|(_, found)| found)
            };
            let found = of(method).or_else(|| (method == b"HEAD").then(|| of(b"GET")).flatten());
            if let Some(operation) = found {
                return Ok(FoundOperation { operation, values });
            }
            missing = NoOperation::Method;
        }
        Err(missing)
    }
}

/// A definition while it is read.
struct DefinitionReading<'a> {
    document: &'a OasDocument,
    schemas: SchemaCollection<'a>,
    faults: SpecFaults,
    /// By their templates as they are written, with the server.
    paths: BTreeMap<String, DefinedPath>,
    count: usize,
    parameters: usize,
    with_responses: bool,
}

impl DefinitionReading<'_> {
    fn read_paths(&mut self) {
        let document = self.document;
        let servers = self.bases(&document.root()["servers"], "/servers");
        for template in document.root()["paths"].as_object().into_iter().flat_map(|paths| paths.keys()) {
            if template.starts_with("x-") {
                continue;
            }
            let at = below("/paths", template);
            if let Err(problem) = PathTemplate::parse(template) {
                self.faults.add(&at, problem);
                continue;
            }
            let Some((item, at)) = document.resolve(&at, &mut self.faults) else { continue };
            let own = item.get("servers").map(|servers| self.bases(servers, &below(&at, "servers")));
            let servers = own.as_ref().unwrap_or(&servers);
            for method in METHODS {
                let Some(operation) = item.get(method) else { continue };
                let at_servers = below(&below(&at, method), "servers");
                let own = operation.get("servers").map(|servers| self.bases(servers, &at_servers));
                let servers = own.as_ref().unwrap_or(servers);
                self.count += servers.len();
                if self.count > MOST_OPERATIONS {
                    return self.faults.add("/paths", format!("has more than {MOST_OPERATIONS} operations"));
                }
                let operation = Arc::new(self.read_operation(item, operation, &at, method));
                self.place(template, servers, method, &operation);
            }
        }
    }

    fn place(&mut self, template: &str, servers: &[String], method: &'static str, operation: &Arc<OasOperation>) {
        for server in servers {
            let full = format!("{server}{template}");
            match PathTemplate::parse(&full) {
                Ok(template) => {
                    let path = self.paths.entry(full).or_insert(DefinedPath { template, operations: Vec::new() });
                    path.operations.push((method, Arc::clone(operation)));
                }
                Err(problem) => self.faults.add(&below("/paths", template), problem),
            }
        }
    }

    /// The base paths of servers; none, and a fault, if they are not possible.
    fn bases(&mut self, servers: &Value, at: &str) -> Vec<String> {
        bases(servers).unwrap_or_else(|problem| {
            self.faults.add(at, problem);
            Vec::new()
        })
    }

    fn read_operation(&mut self, item: &Value, operation: &Value, at: &str, method: &str) -> OasOperation {
        let at_operation = below(at, method);
        let mut parameters: Vec<DeclaredParameter> = Vec::new();
        let count = |owner: &Value| owner["parameters"].as_array().map_or(0, Vec::len);
        let all = count(operation) + count(item);
        self.parameters += all;
        if all > MOST_PARAMETERS || self.parameters > MOST_PARAMETERS_IN_ALL {
            let problem = format!(
                "has more than {MOST_PARAMETERS} parameters, or all operations more than {MOST_PARAMETERS_IN_ALL}"
            );
            self.faults.add(&at_operation, problem);
            return OasOperation {
                parameters,
                arguments: Vec::new(),
                body: None,
                responses: DeclaredResponses::default(),
            };
        }
        // Those of the operation replace those of its path.
        for (owner, at) in [(operation, at_operation.as_str()), (item, at)] {
            for index in 0..owner["parameters"].as_array().map_or(0, Vec::len) {
                let at = below(&below(at, "parameters"), index);
                let read = DeclaredParameter::read(self.document, &at, &mut self.schemas, &mut self.faults);
                let Some(parameter) = read else { continue };
                let is_same = |known: &DeclaredParameter| known.at == parameter.at && known.name == parameter.name;
                if !parameters.iter().any(is_same) {
                    parameters.push(parameter);
                }
            }
        }
        let at_body = below(&at_operation, "requestBody");
        let body = operation
            .get("requestBody")
            .and_then(|_| DeclaredBody::read(self.document, &at_body, &mut self.schemas, &mut self.faults));
        let arguments = parameters.iter().filter(|parameter| parameter.at == ParameterPlace::Query);
        let arguments = arguments.map(|parameter| parameter.name.clone()).collect();
        let responses = match self.with_responses {
            true => {
                let of = (operation, &*at_operation);
                DeclaredResponses::read(self.document, of, &mut self.schemas, &mut self.faults)
            }
            false => DeclaredResponses::default(),
        };
        OasOperation { parameters, arguments, body, responses }
    }
}

/// The paths of servers, without a slash at the end. Variables have their default values, and all others that are listed.
///
/// # Errors
/// If there are too many, or one is too long.
fn bases(servers: &Value) -> Result<Vec<String>, String> {
    let mut bases: Vec<String> = Vec::new();
    for server in servers.as_array().into_iter().flatten() {
        for url in urls(server)? {
            let base = path_of(&url).split(['?', '#']).next().unwrap_or_default().trim_end_matches('/').to_owned();
            if !bases.contains(&base) {
                bases.push(base);
            }
        }
    }
    match bases.len() {
        0 => Ok(vec![String::new()]),
        count if count > MOST_SERVERS => Err(too_many_bases()),
        _ => Ok(bases),
    }
}

fn too_many_bases() -> String {
    format!("the variables of servers make more than {MOST_SERVERS} base paths")
}

/// A URL without scheme and host.
fn path_of(url: &str) -> &str {
    let after = url.split_once("://").map_or(url, |(_, rest)| rest);
    after.find('/').map_or("", |at| &after[at..])
}

/// The URLs of a server with the values of variables. Those of the host alone are left out: they make no other base path.
fn urls(server: &Value) -> Result<Vec<String>, String> {
    let written = server["url"].as_str().unwrap_or("/");
    let mut urls = vec![if written.contains("://") { path_of(written) } else { written }.to_owned()];
    for (name, variable) in server["variables"].as_object().into_iter().flatten() {
        let listed = variable["enum"].as_array().into_iter().flatten();
        let mut values: Vec<&str> = listed.chain(variable.get("default")).filter_map(Value::as_str).collect();
        values.sort_unstable();
        values.dedup();
        values.truncate(MOST_SERVERS + 1);
        let name = format!("{{{name}}}");
        if !urls.iter().any(|url| url.contains(&name)) {
            continue;
        }
        if values.iter().any(|value| value.len() > MOST_VALUE) {
            return Err(format!("a value of the variable `{}` has more than {MOST_VALUE} bytes", quoted(&name)));
        }
        let filled = urls.iter().flat_map(|url| {
            let values: &[&str] = if url.contains(&name) { &values } else { &[""] };
            values.iter().map(|value| url.replace(&name, value)).collect::<Vec<_>>()
        });
        urls = filled.take(MOST_SERVERS + 1).collect();
        // A value can name a variable that comes later, and so grow again and again.
        if urls.iter().any(|url| url.len() > MOST_URL) {
            return Err(format!("the URL of a server has more than {MOST_URL} bytes"));
        }
        if urls.len() > MOST_SERVERS {
            return Err(too_many_bases());
        }
    }
    Ok(urls)
}
