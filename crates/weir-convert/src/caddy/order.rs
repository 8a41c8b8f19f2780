//! The order in which Caddy runs directives: by name, and then by the specificity of their matchers.

use std::rc::Rc;

use super::matcher::NamedMatchers;
use crate::directive::Directive;
use crate::output::Converted;

/// The HTTP directives, in Caddy's order.
const ORDER: &[&str] = &[
    "tracing",
    "map",
    "vars",
    "fs",
    "root",
    "log_append",
    "skip_log",
    "log_skip",
    "log_name",
    "header",
    "copy_response_headers",
    "request_body",
    "redir",
    "method",
    "rewrite",
    "uri",
    "try_files",
    "basicauth",
    "basic_auth",
    "forward_auth",
    "request_header",
    "encode",
    "push",
    "intercept",
    "templates",
    "invoke",
    "handle",
    "route",
    "abort",
    "error",
    "copy_response",
    "respond",
    "metrics",
    "reverse_proxy",
    "php_fastcgi",
    "file_server",
    "acme_server",
];

/// Directives of a site that do not handle requests.
const BESIDE: [&str; 4] = ["tls", "log", "bind", "handle_errors"];

/// A directive in its context.
#[derive(Clone, Debug)]
pub(super) struct DirectiveStep<'a> {
    pub directive: &'a Directive,
    /// The matchers that are defined in its block or around it.
    pub named: Rc<NamedMatchers<'a>>,
    /// The number of its block. At most one `handle`, and one `rewrite`, of a block runs.
    pub block: usize,
}

impl<'a> DirectiveStep<'a> {
    /// The matcher, if there is one, and the arguments after it.
    pub(super) fn arguments(&self) -> (Option<&'a str>, &'a [String]) {
        let arguments = &self.directive.arguments;
        let takes_none = matches!(self.directive.name.as_str(), "try_files" | "invoke");
        let is_target = matches!(self.directive.name.as_str(), "rewrite" | "redir") && arguments.len() == 1;
        match arguments.first() {
            Some(first) if !takes_none && !is_target && (first == "*" || first.starts_with(['/', '@'])) => {
                (Some(first), &arguments[1..])
            }
            _ => (None, arguments),
        }
    }

    /// Whether at most one of the two directives runs: they are of the same block, and both `handle` or both `rewrite`.
    pub(super) fn excludes(&self, other: &DirectiveStep) -> bool {
        let group = sorted_name(&self.directive.name);
        self.block == other.block
            && ["handle", "rewrite"].contains(&group)
            && group == sorted_name(&other.directive.name)
    }

    /// The path of its matcher, if that is a single path.
    fn single_path(&self) -> Option<&'a str> {
        let matcher = self.arguments().0?;
        if matcher.starts_with('/') {
            return Some(matcher);
        }
        let definition = self.named.get(matcher)?;
        let paths: Vec<&str> = match &definition.block {
            Some(lines) => {
                let lines = lines.iter().filter(|line| line.name == "path");
                lines.flat_map(|line| &line.arguments).map(String::as_str).collect()
            }
            None if definition.argument(0) == "path" => definition.after_first().iter().map(String::as_str).collect(),
            None => Vec::new(),
        };
        if let [path] = paths.as_slice() { Some(path) } else { None }
    }

    fn has_matcher(&self) -> bool {
        self.arguments().0.is_some_and(|matcher| matcher != "*")
    }
}

fn sorted_name(name: &str) -> &str {
    if name == "handle_path" { "handle" } else { name }
}

/// Whether a directive handles requests.
pub(super) fn is_handler(directive: &Directive) -> bool {
    !BESIDE.contains(&directive.name.as_str()) && !directive.name.starts_with('@')
}

/// Caddy's order, as changed by the global option `order`.
pub(super) struct DirectiveOrder {
    names: Vec<String>,
}

impl DirectiveOrder {
    pub(super) fn new(options: &[Directive], converted: &mut Converted) -> DirectiveOrder {
        let mut names: Vec<String> = ORDER.iter().map(|&name| name.to_owned()).collect();
        for option in options.iter().filter(|option| option.name == "order") {
            let name = option.argument(0).to_owned();
            names.retain(|known| *known != name);
            let beside = names.iter().position(|known| known == sorted_name(option.argument(2)));
            match (option.argument(1), beside) {
                ("first", _) => names.insert(0, name),
                ("last", _) => names.push(name),
                ("before", Some(position)) => names.insert(position, name),
                ("after", Some(position)) => names.insert(position + 1, name),
                _ => converted.lost(&option.place, format!("`{}`", option.head())),
            }
        }
        DirectiveOrder { names }
    }

    /// Sorts the steps into the order in which they run. The sort is stable.
    pub(super) fn sort(&self, steps: &mut [DirectiveStep]) {
        for end in 1..steps.len() {
            let mut at = end;
            while at > 0 && self.goes_before(&steps[at], &steps[at - 1]) {
                steps.swap(at, at - 1);
                at -= 1;
            }
        }
    }

    fn goes_before(&self, one: &DirectiveStep, other: &DirectiveStep) -> bool {
        let rank = |step: &DirectiveStep| self.names.iter().position(|name| name == sorted_name(&step.directive.name));
        let (left, right) = (rank(one), rank(other));
        if left != right {
            return left < right;
        }
        match (one.single_path(), other.single_path()) {
            (Some(path), Some(than)) if path.trim_end_matches('*') == than.trim_end_matches('*') => {
                path.len() < than.len()
            }
            (Some(path), Some(than)) => path.len() > than.len(),
            _ => one.has_matcher() && !other.has_matcher(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::*;

    fn sorted(text: &str) -> Vec<String> {
        let directives = parse("t", text).expect("correct");
        let named: NamedMatchers = directives.iter().map(|directive| (directive.name.as_str(), directive)).collect();
        let named = Rc::new(named);
        let step = |directive| DirectiveStep { directive, named: named.clone(), block: 0 };
        let mut steps: Vec<DirectiveStep> =
            directives.iter().filter(|directive| is_handler(directive)).map(step).collect();
        let (options, mut converted) = (Vec::new(), Converted::default());
        DirectiveOrder::new(&options, &mut converted).sort(&mut steps);
        steps.iter().map(|step| step.directive.head()).collect()
    }

    #[test]
    fn directives_run_in_the_order_of_caddy() {
        let text = "reverse_proxy a\nrespond /x 1\nheader A b\nhandle {\n}\nhandle_path /a/b* {\n}\nhandle /a* {\n}\nlog\nredir /o /p";
        let order = [
            "header A b",
            "redir /o /p",
            "handle_path /a/b*",
            "handle /a*",
            "handle",
            "respond /x 1",
            "reverse_proxy a",
        ];
        assert_eq!(sorted(text), order);
    }

    #[test]
    fn named_matchers_with_one_path_count_as_this_path() {
        let text = "@b path /a/b/*\n@m method GET\nrespond 1\nrespond /a/* 2\nrespond @b 3\nrespond @m 4";
        assert_eq!(sorted(text), ["respond @b 3", "respond /a/* 2", "respond @m 4", "respond 1"]);
    }
}
