//! A `proxy_pass` whose upstream a `map`, a `split_clients` or a `geo` selects: its cases, as the rules of `traffic-split`.

use super::Conversion;
use super::constants;
use super::map_entries;
use super::syntax::Directive;
use super::target_choice;
use super::variables::names;
use crate::SourcePlace;
use crate::yaml::Yaml;

/// The most cases of a target: a request tries them one after the other.
const CASES: usize = 256;

/// The most variables that are values of each other.
const DEPTH: usize = 8;

/// Requests that get the same target, or one of several by weight.
pub(super) struct TargetCase {
    /// All of these conditions hold.
    pub vars: Vec<Yaml>,
    pub shares: Vec<TargetShare>,
}

pub(super) struct TargetShare {
    pub weight: i64,
    /// The `proxy_pass` with the values in the place of the variables, at the place of the value.
    pub pass: Directive,
    /// The value's line of the file.
    pub entry: String,
    /// The value is empty, so nginx answers with 500.
    pub is_nowhere: bool,
}

impl TargetShare {
    pub(super) fn is_same_as(&self, other: &TargetShare) -> bool {
        (self.weight, self.is_nowhere, &self.pass.arguments) == (other.weight, other.is_nowhere, &other.pass.arguments)
    }
}

/// The cases of a `proxy_pass`, the first of which that holds applies: the last one always does. `None` if no variable that this file
/// defines selects its upstream. `is_rewritten`: the path has been changed before. What has no counterpart is reported.
pub(super) fn of(conversion: &mut Conversion, pass: &Directive, is_rewritten: bool) -> Option<Vec<TargetCase>> {
    let (_, variable) = selecting(conversion.http, pass.argument(0))?;
    let advice = target_choice::advice(conversion.http, variable);
    let share = TargetShare { weight: 1, pass: pass.clone(), entry: pass.head(), is_nowhere: false };
    let mut expansion = Expansion { conversion, is_rewritten, cases: Vec::new() };
    match expansion.expand(share, Vec::new(), 0) {
        Ok(()) => Some(expansion.cases),
        Err((place, why)) => {
            let text = format!("`{}`: {why}, so `${variable}` cannot select the upstream; {advice}", pass.head());
            conversion.lost(&place, text);
            Some(Vec::new())
        }
    }
}

/// Whether the conversion of the targets covers all that a block does: its variable stands nowhere else.
pub(super) fn is_converted(conversion: &Conversion, block: &Directive) -> bool {
    let Some(variable) = defined(block) else { return false };
    conversion.selecting.contains(variable) && !is_used(conversion, conversion.http, variable)
}

/// Whether a directive other than those that select an upstream has a variable.
fn is_used(conversion: &Conversion, block: &[Directive], variable: &str) -> bool {
    let has = |directive: &Directive| {
        let texts = directive.arguments.iter().chain([&directive.name]);
        texts.into_iter().any(|text| names(text).any(|name| name == variable))
    };
    block.iter().any(|directive| {
        let selects = ["proxy_pass", "grpc_pass"].contains(&directive.name.as_str())
            || defined(directive).is_some_and(|name| name == variable || conversion.selecting.contains(name));
        !selects
            && (has(directive) && !conversion.is_covered(directive)
                || is_used(conversion, directive.children(), variable))
    })
}

/// The variable that a block defines.
pub(super) fn defined(block: &Directive) -> Option<&str> {
    let is_it = ["map", "split_clients", "geo"].contains(&block.name.as_str());
    block.arguments.last().filter(|_| is_it)?.strip_prefix('$')
}

/// The first variable before the path of a target that one of these blocks defines, and the block.
fn selecting<'a, 't>(http: &'a [Directive], target: &'t str) -> Option<(&'a Directive, &'t str)> {
    let authority = target.find("://").map_or(0, |at| at + 3);
    let end = target[authority..].find('/').map_or(target.len(), |at| authority + at);
    names(&target[..end]).find_map(|name| Some((http.iter().find(|block| defined(block) == Some(name))?, name)))
}

/// A place, and why the cases cannot be converted.
type Unconverted = (SourcePlace, String);

struct Expansion<'c, 'a> {
    conversion: &'c mut Conversion<'a>,
    is_rewritten: bool,
    cases: Vec<TargetCase>,
}

impl Expansion<'_, '_> {
    /// Adds the cases of a target for requests with these conditions.
    fn expand(&mut self, share: TargetShare, vars: Vec<Yaml>, depth: usize) -> Result<(), Unconverted> {
        let Some((block, variable)) = selecting(self.conversion.http, share.pass.argument(0)) else {
            return self.add(vars, vec![share]);
        };
        let tell = |why: &str| Err((block.place.clone(), format!("`{}`: {why}", block.head())));
        if depth == DEPTH {
            return tell(&format!("more than {DEPTH} variables are values of each other"));
        }
        self.conversion.selecting.insert(variable.to_owned());
        if block.name == "split_clients" {
            let shares = shares(block, variable, &share);
            return match shares.iter().any(|share| selecting(self.conversion.http, share.pass.argument(0)).is_some()) {
                true => tell("a share has a variable in its value"),
                false => self.split(block, vars, shares),
            };
        }
        if self.is_rewritten && ["$uri", "$document_uri"].contains(&block.argument(0)) {
            let source = block.argument(0);
            return tell(&format!("`{source}` is the path after the `rewrite`, and plugins compare the one before"));
        }
        let values = match map_entries::of(block) {
            Ok(values) => values,
            Err(why) => return tell(&why),
        };
        for (conditions, entry) in values {
            let share = valued(&share, variable, entry.map_or("", |entry| entry.argument(0)), entry.unwrap_or(block));
            self.expand(share, [vars.clone(), conditions].concat(), depth + 1)?;
        }
        Ok(())
    }

    fn split(&mut self, block: &Directive, vars: Vec<Yaml>, shares: Vec<TargetShare>) -> Result<(), Unconverted> {
        if shares.iter().filter(|share| share.weight > 0).count() > 1 {
            let text = format!(
                "`{}`: requests are shared by weight, each by itself; nginx gives all requests with the same `{}` the same share",
                block.head(),
                block.argument(0)
            );
            self.conversion.differs(&block.place, text);
        }
        self.add(vars, shares)
    }

    fn add(&mut self, vars: Vec<Yaml>, shares: Vec<TargetShare>) -> Result<(), Unconverted> {
        if self.cases.len() == CASES {
            return Err((shares[0].pass.place.clone(), format!("the target has more than {CASES} cases")));
        }
        self.cases.push(TargetCase { vars, shares });
        Ok(())
    }
}

/// The shares of a `split_clients`, in hundredths of a percent, or smaller whole numbers.
fn shares(block: &Directive, variable: &str, pass: &TargetShare) -> Vec<TargetShare> {
    let mut left = 10_000;
    let mut shares = Vec::new();
    for entry in block.children() {
        let percent = entry.name.strip_suffix('%').and_then(|percent| percent.parse::<f64>().ok());
        let weight = percent.map_or(left, |percent| ((percent * 100.0).round() as i64).clamp(0, left));
        left -= weight;
        shares.push(TargetShare { weight, ..valued(pass, variable, entry.argument(0), entry) });
    }
    if left > 0 {
        shares.push(TargetShare { weight: left, ..valued(pass, variable, "", block) });
    }
    shares.retain(|share| share.weight > 0);
    let divisor = shares.iter().fold(0, |divisor, share| common_divisor(divisor, share.weight)).max(1);
    shares.iter_mut().for_each(|share| share.weight /= divisor);
    shares
}

fn common_divisor(one: i64, other: i64) -> i64 {
    if other == 0 { one } else { common_divisor(other, one % other) }
}

/// A target with a value in the place of a variable.
fn valued(share: &TargetShare, variable: &str, value: &str, entry: &Directive) -> TargetShare {
    let mut pass = share.pass.clone();
    pass.arguments[0] = constants::with_value(pass.argument(0), variable, value);
    pass.place = entry.place.clone();
    let text = pass.argument(0);
    let authority = text.split_once("://").map_or(text, |(_, rest)| rest);
    // The path may be a variable, too.
    let is_nowhere = ["/", ":", "$request_uri", "$uri"].iter().any(|path| authority.starts_with(path));
    let is_nowhere = is_nowhere || authority.is_empty();
    TargetShare { weight: 1, is_nowhere, entry: entry.head(), pass }
}
