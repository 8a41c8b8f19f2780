//! `auth_basic` with a file of users, as `basic-auth` with these users.

use super::directives::is_off;
use super::scope::BlockScope;
use super::syntax::Directive;
use crate::directive::Include;
use crate::yaml::{Yaml, YamlMembers};
use crate::{ConversionFinding, FindingKind};

const AUTH_BASIC: &str = "auth_basic";
const USER_FILE: &str = "auth_basic_user_file";

/// How the hashes begin that Weir reads.
const HASHES: [&str; 5] = ["$apr1$", "$2a$", "$2b$", "$2y$", "$argon2"];

/// Puts the users of each file into the block of the `auth_basic` beside it. All stay as they are, and their routes are closed, if the
/// two do not always stand together, since one block may then have the users of another, or if a `satisfy` says that other
/// controls suffice.
pub(super) fn read_users(directives: &mut Vec<Directive>, include: Include, findings: &mut Vec<ConversionFinding>) {
    if are_together(directives) {
        in_block(directives, include, findings);
    }
}

fn demands(directive: &Directive) -> bool {
    directive.name == AUTH_BASIC && !is_off(directive)
}

fn are_together(block: &[Directive]) -> bool {
    let count = |is_it: &dyn Fn(&Directive) -> bool| block.iter().filter(|directive| is_it(directive)).count();
    let (demanded, files) = (count(&demands), count(&|directive| directive.name == USER_FILE));
    demanded == files
        && demanded <= 1
        && block.iter().all(|directive| directive.name != "satisfy" && are_together(directive.children()))
}

fn in_block(block: &mut Vec<Directive>, include: Include, findings: &mut Vec<ConversionFinding>) {
    // A realm of variables is not known.
    let has_realm = block.iter().any(|directive| demands(directive) && !directive.argument(0).contains('$'));
    let file = block.iter().position(|directive| directive.name == USER_FILE).filter(|_| has_realm);
    if let Some((file, users)) = file.and_then(|file| Some((file, users(&block[file], include, findings)?))) {
        block.remove(file);
        if let Some(directive) = block.iter_mut().find(|directive| demands(directive)) {
            directive.block = Some(users);
        }
    }
    let inner = block.iter_mut().filter(|directive| directive.name != AUTH_BASIC);
    inner.filter_map(|directive| directive.block.as_mut()).for_each(|inner| in_block(inner, include, findings));
}

/// The users of a file whose hashes Weir reads, each as a directive; `None` if there are none.
fn users(file: &Directive, include: Include, findings: &mut Vec<ConversionFinding>) -> Option<Vec<Directive>> {
    let texts = include(file.argument(0)).ok()?;
    let lines = texts.iter().flat_map(|(_, text)| text.lines()).map(str::trim);
    let entries = lines.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(':'));
    let entry = |(name, rest): (&str, &str)| (name.to_owned(), rest.split(':').next().unwrap_or_default().to_owned());
    let is_read = |(_, hash): &(String, String)| HASHES.iter().any(|begin| hash.starts_with(begin));
    let (read, others): (Vec<_>, Vec<_>) = entries.map(entry).partition(is_read);
    if read.is_empty() {
        return None;
    }
    let mut told = |kind, text| findings.push(ConversionFinding { place: file.place.clone(), kind, text });
    if !others.is_empty() {
        let names: Vec<String> = others.iter().map(|(name, _)| format!("`{name}`")).collect();
        let text = format!(
            "`{}`: only hashes of `htpasswd -B` and `$apr1$` are read; refused are {}",
            file.head(),
            names.join(", ")
        );
        told(FindingKind::Lost, text);
    }
    told(
        FindingKind::Differs,
        format!("`{}`: its users are copied, and changes of the file have no effect", file.head()),
    );
    let place = &file.place;
    Some(
        read.into_iter()
            .map(|(name, hash)| Directive { name, arguments: vec![hash], block: None, place: place.clone() })
            .collect(),
    )
}

/// The plugin for the `auth_basic` in effect, if its users were read.
pub(super) fn plugin(scope: &BlockScope) -> Option<(String, Yaml)> {
    let directive = scope.last(AUTH_BASIC).filter(|directive| !directive.children().is_empty())?;
    let user = |user: &Directive| {
        Yaml::map([("username", Yaml::text(&user.name)), ("password", Yaml::text(user.argument(0)))])
    };
    let mut options = YamlMembers::new();
    let realm = directive.argument(0);
    if !realm.is_empty() {
        options.push(("realm".to_owned(), Yaml::text(realm)));
    }
    // As in nginx, the upstream gets the field.
    options.push(("hide_credentials".to_owned(), Yaml::Boolean(false)));
    options.push(("users".to_owned(), Yaml::List(directive.children().iter().map(user).collect())));
    Some(("basic-auth".to_owned(), Yaml::Map(options)))
}

/// Whether the directive is an `auth_basic` whose users were read.
pub(super) fn is_converted(directive: &Directive) -> bool {
    directive.name == AUTH_BASIC && !directive.children().is_empty()
}
