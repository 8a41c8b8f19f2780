//! What the resources of a store may use of the node: environment variables, secrets, files, addresses to listen on, and its identity.
//!
//! Whoever may change resources is not always who may read the environment and the files of the node. So the node's configuration
//! file lists what resources may use, and this module decides by these lists, for every way in which a resource can refer to
//! something. Without an entry, a resource can use nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use weir_net::tls::SpiffeId;
use weir_plugin::AllowedFolders;

use super::listen::ListenAddress;
use super::listener::AllowedAddresses;
use super::secret_reference::{ReferenceFault, SecretReference};
use crate::keys;
use crate::keys::MapKeys;
use crate::keys::kinds::{List, ParsedText, list, text};
use crate::keys::schema::Definitions;
use crate::text::read::{NodeReader, shortened};

/// What to do if a resource of a store may not name this file.
pub fn advice_on_file(name: &str) -> String {
    let add = "add the file's directory to `resource_files` in the configuration file of the node";
    match AllowedFolders::advice(name) {
        Some(advice) => format!("{advice}, and {add} if it is not there; or write the content itself"),
        None => format!("write the content itself, or {add}"),
    }
}

/// Variables of the node that resources may not read even if they are listed, besides those that its file names.
const OWN_VARIABLES: &[&str] = &["WEIR_ADMIN_KEY"];

/// The lists of a node's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceRights {
    /// `resource_env`: environment variables.
    pub variables: Vec<NameRule>,
    /// `resource_secrets`: secrets, such as `vault/1/shop/*`.
    pub secrets: Vec<NameRule>,
    /// `resource_files`: directories with files that may be read, relative to that of the configuration.
    pub files: Vec<Box<str>>,
    /// `resource_log_files`: directories in which files may be written, relative to that of the configuration.
    pub log_files: Vec<Box<str>>,
    /// `resource_listeners`: addresses that may be listened on.
    pub listeners: Vec<AllowedAddresses>,
    /// `resource_spiffe_ids`: whom an X.509-SVID of the node may be shown to.
    pub svid: SvidRight,
}

/// Whom upstreams may show an X.509-SVID of the node to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SvidRight {
    /// These workloads.
    To(Vec<SpiffeId>),
    /// Any endpoint.
    ToAny,
}

impl Default for SvidRight {
    fn default() -> SvidRight {
        SvidRight::To(Vec::new())
    }
}

/// An entry of `resource_env` or `resource_secrets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRule {
    name: NamePattern,
    /// The resources that may use it, by their keys; empty: all.
    resources: Vec<NamePattern>,
}

/// A name, or with `*` at its end all names that begin like it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamePattern(Box<str>);

impl NamePattern {
    fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => *self.0 == *name,
        }
    }
}

impl NameRule {
    /// All resources may use this name.
    pub fn of_all(name: &str) -> NameRule {
        NameRule { name: NamePattern(name.into()), resources: Vec::new() }
    }

    fn allows(&self, resource: &str, name: &str) -> bool {
        self.name.matches(name) && (self.resources.is_empty() || self.resources.iter().any(|one| one.matches(resource)))
    }
}

/// What the resources of a store may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceAccess {
    rights: ResourceRights,
    /// The variables that the node's file uses.
    own_variables: BTreeSet<Box<str>>,
    pub readable: Arc<AllowedFolders>,
    pub writable: Arc<AllowedFolders>,
}

/// The files that the settings of the node name.
#[derive(Debug, Default)]
pub struct OwnFiles {
    /// Certificates of authorities: resources may read them like other files.
    pub public: Vec<PathBuf>,
    /// Everything else, such as keys and logs. A certificate of the node is one of them: its file may contain the key as well.
    pub private: Vec<PathBuf>,
}

/// What is the node's own: no resource may use it, whatever is listed.
#[derive(Debug, Default)]
pub struct NodeOwned {
    /// Environment variables.
    pub variables: BTreeSet<Box<str>>,
    /// The files that the settings name.
    pub files: OwnFiles,
    /// Directories with files that the node writes.
    pub folders: Vec<PathBuf>,
}

impl ResourceAccess {
    /// `directory` is that of the configuration file; `configuration` is the file itself.
    pub fn new(rights: ResourceRights, owned: NodeOwned, configuration: &Path, directory: &Path) -> ResourceAccess {
        let below = |names: &[Box<str>]| -> Vec<PathBuf> { names.iter().map(|name| directory.join(&**name)).collect() };
        // The files in `/proc` contain the environment and the memory of the node.
        let mut refused: Vec<PathBuf> = ["/proc", "/sys"].map(PathBuf::from).into();
        refused.extend(owned.folders);
        let OwnFiles { public, private: mut refused_files } = owned.files;
        refused_files.push(configuration.to_owned());
        let readable = AllowedFolders {
            directory: directory.to_owned(),
            allowed: below(&rights.files),
            refused: refused.clone(),
            refused_files: refused_files.clone(),
        };
        // Who writes there must not replace what others read.
        refused.extend(below(&rights.files));
        refused_files.extend(public);
        let writable = AllowedFolders {
            directory: directory.to_owned(),
            allowed: below(&rights.log_files),
            refused,
            refused_files,
        };
        ResourceAccess {
            rights,
            own_variables: owned.variables,
            readable: Arc::new(readable),
            writable: Arc::new(writable),
        }
    }

    /// Whether a resource may read an environment variable. Says nothing about whether the variable is set.
    pub(super) fn variable(&self, resource: &str, name: &str) -> Result<(), ReferenceFault> {
        // A reference may name a member of the JSON in a variable.
        let whole = name.split('/').next().unwrap_or_default();
        if OWN_VARIABLES.contains(&whole) || self.own_variables.contains(whole) {
            let problem = format!("the environment variable `{}` is used by the node itself", shortened(name));
            return Err((problem, "use another variable: resources of a store cannot read this one".to_owned()));
        }
        if self.rights.variables.iter().any(|rule| rule.allows(resource, name)) {
            return Ok(());
        }
        let problem = format!("the environment variable `{}` may not be read by this resource", shortened(name));
        Err((problem, "add it to `resource_env` in the configuration file of the node".to_owned()))
    }

    /// Whether some resource may read an environment variable.
    fn lists_variable(&self, name: &str) -> bool {
        let all = || self.rights.variables.iter().filter(|rule| rule.name.matches(name));
        let resources = all().flat_map(|rule| rule.resources.iter().map(|one| one.0.trim_end_matches('*')));
        all().next().is_some() && resources.chain([""]).any(|resource| self.variable(resource, name).is_ok())
    }

    /// Whether a resource may read a secret.
    pub(super) fn secret(&self, resource: &str, secret: &SecretReference) -> Result<(), ReferenceFault> {
        let SecretReference { manager, path, key } = secret;
        let name = format!("{manager}/{path}/{key}");
        // The name becomes the path of a URL, where such parts would lead to other names.
        let is_plain = |part: &str| !matches!(part, "." | "..") && !part.contains(['%', '?', '#', '\\']);
        if !name.split('/').all(is_plain) {
            let problem = format!("`{}` is not the plain name of a secret", shortened(&name));
            return Err((problem, "write it without `.`, `..`, `%`, `?`, `#` and `\\`".to_owned()));
        }
        if self.rights.secrets.iter().any(|rule| rule.allows(resource, &name)) {
            return Ok(());
        }
        let problem = format!("the secret `{}` may not be read by this resource", shortened(&name));
        Err((problem, "add it to `resource_secrets` in the configuration file of the node".to_owned()))
    }

    /// Whether resources may listen on an address.
    pub fn may_listen(&self, address: ListenAddress) -> bool {
        self.rights.listeners.iter().any(|allowed| allowed.contain(address))
    }

    /// Whom upstreams may show an X.509-SVID of the node to.
    pub fn svid(&self) -> &SvidRight {
        &self.rights.svid
    }

    /// Whether some resource may read the text that a name stands for: the name of a file, or `$env://NAME`.
    pub(super) fn may_read(&self, name: &str) -> bool {
        match name.strip_prefix("$env://") {
            Some(variable) => self.lists_variable(variable),
            None => self.readable.may_name(&self.readable.path_of(name)),
        }
    }
}

const MOST_NAME: usize = 1_024;
/// Of a name: `*` may stand at its end.
const NAME: &str = r"^[^*]*\*?$";

keys! {
    /// What some resources may read.
    pub(super) static RESOURCE_RULE: ResourceRuleKeys = "resource_rule";

    /// The name. `*` at its end stands for any rest.
    name: ParsedText<NamePattern> = text(1, MOST_NAME).pattern(NAME).parsed(pattern), own(),
        required("write `{ name: SHOP_TOKEN, resources: [routes/shop-*] }`"), example("SHOP_TOKEN");
    /// The keys of the resources that may read it. `*` at the end of a key stands for any rest.
    resources: List<ParsedText<NamePattern>> = list(text(1, MOST_NAME).pattern(NAME).parsed(pattern)), own(), absent("all"),
        example("[\"routes/shop-*\"]");
}

pub(super) fn rule_schema(definitions: &mut Definitions) -> Value {
    let name = json!({ "type": "string", "minLength": 1, "maxLength": MOST_NAME, "pattern": NAME });
    json!({ "oneOf": [name, { "$ref": definitions.reference(RESOURCE_RULE.table()) }] })
}

/// Reports directories, `at` which is the list of those that may be written, that may be read as well.
pub(super) fn keep_apart(rights: &ResourceRights, at: &NodeReader) {
    let overlap = |a: &str, b: &str| Path::new(a).starts_with(b) || Path::new(b).starts_with(a);
    let both = rights.log_files.iter().find(|written| rights.files.iter().any(|read| overlap(read, written)));
    if let Some(both) = both {
        at.report_advising(
            format!("resources may write in `{}`, and others read there (`resource_files`)", shortened(both)),
            "use separate directories: who writes a file there could replace one that others read",
        );
    }
}

/// A name, or `{ name, resources }`.
pub(super) fn rule(at: &NodeReader) -> Option<NameRule> {
    if !at.is_map() {
        return Some(NameRule { name: pattern(at, at.text_of(1..=MOST_NAME)?)?, resources: Vec::new() });
    }
    let fields = at.keys(&RESOURCE_RULE)?;
    let name = fields.read(&RESOURCE_RULE.name);
    let resources = fields.read(&RESOURCE_RULE.resources).unwrap_or_default();
    if let Some(list) = fields.get(&RESOURCE_RULE.resources)
        && resources.is_empty()
    {
        list.report_advising(
            "lists no resource",
            "write keys such as `routes/shop-*`, or leave it out for all resources",
        );
        return None;
    }
    Some(NameRule { name: name?, resources })
}

fn pattern(at: &NodeReader, text: &str) -> Option<NamePattern> {
    let name = text.strip_suffix('*').unwrap_or(text);
    if name.contains('*') || name.contains("://") {
        let problem = format!("`{}` is not a name", shortened(text));
        at.report_advising(problem, "write the name without `$env://` or `$secret://`; `*` may stand at its end");
        return None;
    }
    Some(NamePattern(text.into()))
}

#[cfg(test)]
impl ResourceAccess {
    /// With these variables and secrets, for all resources.
    pub fn of_tests(variables: &[&str], secrets: &[&str]) -> ResourceAccess {
        let rules = |names: &[&str]| -> Vec<NameRule> {
            let rule = |name: &&str| NameRule { name: NamePattern((*name).into()), resources: Vec::new() };
            names.iter().map(rule).collect()
        };
        let rights =
            ResourceRights { variables: rules(variables), secrets: rules(secrets), ..ResourceRights::default() };
        ResourceAccess { rights, ..ResourceAccess::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, resources: &[&str]) -> NameRule {
        let pattern = |text: &str| NamePattern(text.into());
        NameRule { name: pattern(name), resources: resources.iter().map(|one| pattern(one)).collect() }
    }

    fn access(variables: Vec<NameRule>, secrets: Vec<NameRule>) -> ResourceAccess {
        let rights = ResourceRights { variables, secrets, ..ResourceRights::default() };
        let owned = NodeOwned { variables: ["DATA_KEY".into()].into(), ..NodeOwned::default() };
        ResourceAccess::new(rights, owned, Path::new("/etc/weir/weir.yaml"), Path::new("/etc/weir"))
    }

    #[test]
    fn variables_are_those_listed_for_the_resource_and_never_the_nodes_own() {
        let access = access(
            vec![rule("SHOP_*", &[]), rule("VAULT_TOKEN", &["secrets/vault/*"]), rule("*", &["ssls/all"])],
            vec![],
        );
        for (resource, name, allowed) in [
            ("routes/r", "SHOP_TOKEN", true),
            ("routes/r", "SHOP", false),
            ("routes/r", "VAULT_TOKEN", false),
            ("secrets/vault/1", "VAULT_TOKEN", true),
            ("ssls/all", "ANY", true),
            ("ssls/all", "DATA_KEY", false),
            ("ssls/all", "WEIR_ADMIN_KEY", false),
            ("ssls/other", "ANY", false),
        ] {
            assert_eq!(access.variable(resource, name).is_ok(), allowed, "{resource} {name}");
        }
        assert!(access.may_read("$env://VAULT_TOKEN") && access.may_read("$env://ANY"), "some resource may");
        assert!(!access.may_read("$env://DATA_KEY"));
        assert!(ResourceAccess::default().variable("routes/r", "HOME").is_err(), "nothing is listed");
    }

    #[test]
    fn secrets_are_those_listed_and_no_others_by_way_of_their_path() {
        let access = access(vec![], vec![rule("vault/1/team-a/*", &[])]);
        let allowed = |path: &str| {
            let secret = SecretReference { manager: "vault/1".into(), path: path.into(), key: "key".into() };
            access.secret("routes/r", &secret).is_ok()
        };
        assert!(allowed("team-a/db") && allowed("team-a"));
        for path in ["team-b/db", "team-a/../team-b/db", "team-a/%2e%2e/team-b", "team-a/x?y", "team-ab"] {
            assert!(!allowed(path), "{path}");
        }
    }

    #[test]
    fn files_are_read_and_written_in_separate_directories() {
        let rights =
            ResourceRights { files: vec!["certs".into()], log_files: vec!["logs".into()], ..ResourceRights::default() };
        let access = ResourceAccess::new(rights, NodeOwned::default(), Path::new("/e/weir.yaml"), Path::new("/e"));
        assert!(access.may_read("certs/a.pem") && access.may_read("/e/certs/a.pem"));
        assert!(
            !access.may_read("logs/a.log") && !access.may_read("certs/../weir.yaml") && !access.may_read("weir.yaml")
        );
        assert!(access.writable.refused.contains(&"/e/certs".into()));
    }
}
