//! `auth_basic` with a file of users, as `basic-auth` with these users.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::directives::is_off;
use super::scope::BlockScope;
use super::syntax::Directive;
use crate::directive::Include;
use crate::yaml::{Yaml, YamlMembers};
use crate::{ConversionFinding, FindingKind};

const AUTH_BASIC: &str = "auth_basic";
const USER_FILE: &str = "auth_basic_user_file";

/// The bounds of what `basic-auth` accepts: the length of a realm, the length and cost of a hash of bcrypt, and the lengths of the salt and
/// the digest of `$apr1$`.
const LONGEST_REALM: usize = 128;
const BCRYPT: usize = 60;
const BCRYPT_COSTS: RangeInclusive<u32> = 4..=15;
const APR1_SALTS: RangeInclusive<usize> = 1..=8;
const APR1_DIGEST: usize = 22;

/// Puts the users of each file into the block of the `auth_basic` beside it. All stay as they are, and their routes are closed, if the
/// two do not always stand together, since one block may then have the users of another.
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
    demanded == files && demanded <= 1 && block.iter().all(|directive| are_together(directive.children()))
}

fn in_block(block: &mut Vec<Directive>, include: Include, findings: &mut Vec<ConversionFinding>) {
    // A realm of variables is not known.
    let has_realm = block.iter().any(|directive| demands(directive) && !directive.argument(0).contains('$'));
    let file = block.iter().position(|directive| directive.name == USER_FILE).filter(|_| has_realm);
    if let Some((file, users)) = file.and_then(|file| Some((file, users(&block[file], include, findings)?))) {
        block.remove(file);
        if let Some(directive) = block.iter_mut().find(|directive| demands(directive)) {
            directive.block = Some(users);
            check_realm(directive, findings);
        }
    }
    let inner = block.iter_mut().filter(|directive| directive.name != AUTH_BASIC);
    inner.filter_map(|directive| directive.block.as_mut()).for_each(|inner| in_block(inner, include, findings));
}

/// Removes a realm that `basic-auth` does not accept.
fn check_realm(directive: &mut Directive, findings: &mut Vec<ConversionFinding>) {
    let is_quotable = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    let realm = directive.argument(0);
    if realm.len() <= LONGEST_REALM && realm.bytes().all(is_quotable) {
        return;
    }
    let text = format!(
        "`{}`: a `realm` has at most {LONGEST_REALM} printable ASCII characters, without quotes and backslashes; it is left out",
        directive.head()
    );
    findings.push(ConversionFinding { place: directive.place.clone(), kind: FindingKind::Differs, text });
    directive.arguments.clear();
}

/// Whether it is a hash of bcrypt or `$apr1$` that `basic-auth` accepts. nginx knows no Argon2.
fn is_read(hash: &str) -> bool {
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./".contains(&byte));
    let parts: Vec<&str> = hash.split('$').collect();
    match *parts {
        ["", "apr1", salt, digest] => {
            APR1_SALTS.contains(&salt.len()) && digest.len() == APR1_DIGEST && are_digits(digest)
        }
        ["", "2a" | "2b" | "2y", cost, digits] => {
            let is_affordable =
                cost.len() == 2 && are_digits(cost) && cost.parse().is_ok_and(|cost| BCRYPT_COSTS.contains(&cost));
            hash.len() == BCRYPT && is_affordable && are_digits(digits)
        }
        _ => false,
    }
}

/// The users of a file whose hashes Weir reads, each as a directive; `None` if there are none.
fn users(file: &Directive, include: Include, findings: &mut Vec<ConversionFinding>) -> Option<Vec<Directive>> {
    let texts = match include(file.argument(0)) {
        Ok(texts) => texts,
        Err(error) => {
            let text = format!("`{}`: cannot be read: {error}", file.head());
            findings.push(ConversionFinding { place: file.place.clone(), kind: FindingKind::Lost, text });
            return None;
        }
    };
    let lines = texts.iter().flat_map(|(_, text)| text.lines()).filter(|line| !line.starts_with('#'));
    let entries = lines.filter_map(|line| line.split_once(':')).filter(|(name, _)| !name.is_empty());
    let entry = |(name, rest): (&str, &str)| (name.to_owned(), rest.split(':').next().unwrap_or_default().to_owned());
    // Of equal names the first one counts in nginx.
    let mut names = BTreeSet::new();
    let first = entries.filter(|(name, _)| names.insert(*name));
    let (read, others): (Vec<_>, Vec<_>) = first.map(entry).partition(|(_, hash)| is_read(hash));
    if read.is_empty() {
        return None;
    }
    let mut told = |kind, text| findings.push(ConversionFinding { place: file.place.clone(), kind, text });
    if !others.is_empty() {
        let names: Vec<String> = others.iter().map(|(name, _)| format!("`{name}`")).collect();
        let text = format!(
            "`{}`: only complete hashes of `htpasswd -B` up to cost {}, and `$apr1$`, are read; refused are {}",
            file.head(),
            BCRYPT_COSTS.end(),
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
