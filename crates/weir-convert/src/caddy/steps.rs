//! Walks the directives in the order in which they run, and collects the resulting routes.
//!
//! Each matcher splits the requests that reach it: matching ones continue with the directive, the others without it. Every path
//! through the directives that ends in a response is a route. Routes that Caddy would reach earlier come first.

use std::rc::Rc;

use super::answers::{self, StepAnswer};
use super::conditions::Conditions;
use super::error_pages;
use super::headers;
use super::instead::instead;
use super::matcher::{MatchedRequests, NamedMatchers, of_argument};
use super::options::finds_client;
use super::order::{DirectiveOrder, DirectiveStep, is_handler};
use super::path::LocatedPath;
use super::rewriting::{self, NotRewritten};
use super::state::RequestState;
use crate::SourcePlace;
use crate::answer::{answer, answer_behind_plugins};
use crate::directive::Directive;
use crate::output::Converted;
use crate::yaml::YamlMembers;

/// The most routes of a site, and the most nested splits by matchers.
const ROUTES: usize = 256;
const DIVISIONS: usize = 64;

/// A route: one path through the directives.
#[derive(Clone, Debug)]
pub(super) struct RouteDraft {
    pub place: SourcePlace,
    pub head: String,
    pub conditions: Conditions,
    pub plugins: YamlMembers,
    /// The members `upstream` and `timeout`.
    pub target: YamlMembers,
    /// No directive responds: Caddy sends an empty response with status 200.
    pub is_unanswered: bool,
}

enum StepOutcome<'a> {
    Continues,
    Enters(Vec<DirectiveStep<'a>>),
    Answers(StepAnswer),
}

/// The state of the walk through the directives of a site.
pub(super) struct SiteWalk<'a, 'b> {
    pub converted: &'b mut Converted,
    order: &'b DirectiveOrder,
    pub drafts: Vec<RouteDraft>,
    site: &'a Directive,
    blocks: usize,
    divisions: usize,
    pub is_too_much: bool,
}

impl<'a, 'b> SiteWalk<'a, 'b> {
    pub(super) fn new(
        converted: &'b mut Converted,
        order: &'b DirectiveOrder,
        site: &'a Directive,
    ) -> SiteWalk<'a, 'b> {
        SiteWalk { converted, order, drafts: Vec::new(), site, blocks: 0, divisions: 0, is_too_much: false }
    }

    /// Walks all directives of the site.
    pub(super) fn run(&mut self, conditions: Conditions, named: &NamedMatchers<'a>) {
        let steps = self.steps(self.site, named, true);
        let policies = error_pages::plugin(self.converted, self.site).into_iter().collect();
        self.walk(RequestState { conditions, policies, ..RequestState::default() }, steps);
    }

    /// The directives of a block that handle requests.
    fn steps(&mut self, block: &'a Directive, named: &NamedMatchers<'a>, is_sorted: bool) -> Vec<DirectiveStep<'a>> {
        let mut named = named.clone();
        let matchers = block.children().iter().filter(|directive| directive.name.starts_with('@'));
        named.extend(matchers.map(|directive| (directive.name.as_str(), directive)));
        let named = Rc::new(named);
        self.blocks += 1;
        let step = |directive| DirectiveStep { directive, named: named.clone(), block: self.blocks };
        let mut steps: Vec<DirectiveStep> =
            block.children().iter().filter(|child| is_handler(child)).map(step).collect();
        if is_sorted {
            self.order.sort(&mut steps);
        }
        for pair in steps.windows(2) {
            let [step, next] = pair else { continue };
            if step.excludes(next) && step.arguments().0 == next.arguments().0 {
                let text = format!(
                    "`{}`: Caddy joins it with the one before, which has the same matcher; here it gets no requests",
                    next.directive.head()
                );
                self.converted.differs(&next.directive.place, text);
            }
        }
        steps
    }

    fn walk(&mut self, mut state: RequestState, steps: Vec<DirectiveStep<'a>>) {
        self.is_too_much |= self.drafts.len() >= ROUTES || self.divisions >= DIVISIONS;
        if self.is_too_much {
            return;
        }
        self.divisions += 1;
        let mut steps = std::collections::VecDeque::from(steps);
        while let Some(step) = steps.pop_front() {
            let matched = self.matched(&step, &state, &steps);
            let inner = state.conditions.and(&matched.conditions).filter(|_| !matched.is_never);
            let Some(inner) = inner else { continue };
            let is_for_all = inner == state.conditions && matched.unknown.is_none();
            if !is_for_all && self.add_fields(&step, &matched, &mut state) {
                continue;
            }
            let mut branch = state.clone();
            branch.conditions = inner;
            branch.captures.extend(matched.captures.iter().cloned());
            let outcome = match &matched.unknown {
                None => self.run_step(&step, &mut branch),
                Some(why) if is_harmless(&step.directive.name) => {
                    self.converted.lost(&step.directive.place, format!("`{}`: {why}", step.directive.head()));
                    continue;
                }
                Some(why) => StepOutcome::Answers(self.closed(step.directive, why)),
            };
            let rest = || steps.iter().filter(|other| !step.excludes(other)).cloned();
            match outcome {
                StepOutcome::Answers(answer) => self.finish(branch, step.directive, answer),
                StepOutcome::Continues if is_for_all => {
                    state = branch;
                    steps = rest().collect();
                    continue;
                }
                StepOutcome::Enters(body) if is_for_all => {
                    state = branch;
                    steps = body.into_iter().chain(rest()).collect();
                    continue;
                }
                StepOutcome::Continues => {
                    let rest = rest().collect();
                    self.walk(branch, rest);
                }
                StepOutcome::Enters(body) => {
                    let rest = body.into_iter().chain(rest()).collect();
                    self.walk(branch, rest);
                }
            }
            if is_for_all || self.is_too_much {
                self.divisions -= 1;
                return;
            }
        }
        self.unanswered(state);
        self.divisions -= 1;
    }

    /// The requests that a directive applies to.
    fn matched(
        &self,
        step: &DirectiveStep,
        state: &RequestState,
        rest: &std::collections::VecDeque<DirectiveStep>,
    ) -> MatchedRequests {
        let (matcher, arguments) = step.arguments();
        let mut matched =
            matcher.and_then(|matcher| of_argument(matcher, &step.named, &state.path)).unwrap_or_default();
        if finds_client(self.converted) && matched.drop_client_rules() {
            let text = "`client_ip`: routes are chosen by the address of the connection, before `real-ip` finds the client's; \
                        see `ip-restriction`";
            matched.unknown.get_or_insert_with(|| text.to_owned());
        }
        let is_divided = || rest.iter().any(|step| step.arguments().0.is_some() || step.directive.block.is_some());
        match (step.directive.name.as_str(), arguments) {
            // Later matchers apply to the new path, so requests with and without the prefix must be separated.
            ("uri", [kind, prefix]) if kind == "strip_prefix" && is_divided() => {
                let prefix = format!("/{}*", prefix.trim_start_matches('/'));
                if let LocatedPath::Uri(uri) = state.path.located(&prefix) {
                    let with_prefix = Conditions { uris: vec![uri], ..Conditions::default() };
                    match matched.conditions.and(&with_prefix) {
                        Some(conditions) => matched.conditions = conditions,
                        None => matched.is_never = true,
                    }
                }
                matched
            }
            _ => matched,
        }
    }

    /// Adds the fields of a `header` whose matcher becomes a condition of the plugin; `false` if the matcher has to split the
    /// requests.
    fn add_fields(&mut self, step: &DirectiveStep, matched: &MatchedRequests, state: &mut RequestState) -> bool {
        if matched.unknown.is_some() || !self.is_only_header(step.directive) {
            return false;
        }
        let lines = headers::lines(step.directive, step.arguments().1);
        headers::response(self.converted, state, step.directive, &lines);
        state.response_fields.vars = matched.conditions.rules();
        true
    }

    /// Whether this is the only directive of the site about response fields: its matcher can then be a condition of the plugin,
    /// and need not split the requests.
    fn is_only_header(&self, directive: &Directive) -> bool {
        fn count(block: &Directive) -> usize {
            let is_one = |child: &&Directive| ["header", "header_down"].contains(&child.name.as_str());
            let children = block.children().iter();
            children.clone().filter(is_one).count() + children.map(count).sum::<usize>()
        }
        directive.name == "header" && count(self.site) == 1
    }

    fn run_step(&mut self, step: &DirectiveStep<'a>, state: &mut RequestState) -> StepOutcome<'a> {
        let directive = step.directive;
        let (matcher, arguments) = step.arguments();
        let done: Result<(), String> = match directive.name.as_str() {
            "handle" | "handle_path" | "route" => {
                if directive.name == "handle_path" {
                    let path = matcher.unwrap_or_default();
                    let prefix = path.strip_suffix("/*").or_else(|| path.strip_suffix('*')).unwrap_or(path);
                    if !prefix.is_empty() && !state.path.strip(prefix) {
                        let why = "the path was rewritten before";
                        return StepOutcome::Answers(self.closed(directive, why));
                    }
                }
                return StepOutcome::Enters(self.steps(directive, &step.named, directive.name != "route"));
            }
            "header" => {
                headers::response(self.converted, state, directive, &headers::lines(directive, arguments));
                Ok(())
            }
            "request_header" => {
                headers::request(self.converted, state, directive, &headers::lines(directive, arguments));
                Ok(())
            }
            "encode" => {
                self.encode(state, directive, arguments);
                Ok(())
            }
            "request_body" => {
                self.request_body(state, directive);
                Ok(())
            }
            "basicauth" | "basic_auth" => self.basic_auth(state, directive, arguments),
            "forward_auth" => self.forward_auth(state, directive, arguments),
            "method" => {
                state.method = arguments.first().map(|method| method.to_ascii_uppercase());
                Ok(())
            }
            "uri" => {
                rewriting::uri(self.converted, state, &directive.place, arguments).map_err(|NotRewritten(why)| why)
            }
            "rewrite" => {
                let target = arguments.first().map_or("", String::as_str);
                rewriting::rewrite(self.converted, state, &directive.place, target).map_err(|NotRewritten(why)| why)
            }
            _ => return self.run_last(directive, arguments, state),
        };
        match done {
            Ok(()) => StepOutcome::Continues,
            Err(why) => StepOutcome::Answers(self.closed(directive, &why)),
        }
    }

    /// A directive that responds, or one that is not converted.
    fn run_last(
        &mut self,
        directive: &'a Directive,
        arguments: &[String],
        state: &mut RequestState,
    ) -> StepOutcome<'a> {
        let answer = match directive.name.as_str() {
            "redir" => answers::redirect(state, arguments),
            "respond" => answers::respond(state, directive, arguments),
            "error" => Ok(answers::error(arguments)),
            "abort" => Ok(answers::abort(self.converted, &directive.place)),
            "reverse_proxy" => self.reverse_proxy(state, directive, arguments),
            "file_server" | "php_fastcgi" | "metrics" | "acme_server" => {
                let text = format!("`{}`: {}; the route answers with 404", directive.head(), instead(&directive.name));
                self.converted.lost(&directive.place, text);
                Ok(StepAnswer::Body { status: 404, body: String::new(), kind: None })
            }
            name if is_harmless(name) => {
                self.converted.lost(&directive.place, format!("`{}`: {}", directive.head(), instead(name)));
                return StepOutcome::Continues;
            }
            name => Err(instead(name).to_owned()),
        };
        StepOutcome::Answers(answer.unwrap_or_else(|why| self.closed(directive, &why)))
    }

    fn closed(&mut self, directive: &Directive, why: &str) -> StepAnswer {
        let text = format!("`{}`: {why}; the route answers with 503", directive.head());
        self.converted.lost(&directive.place, text);
        StepAnswer::Closed
    }

    fn unanswered(&mut self, state: RequestState) {
        let body = StepAnswer::Body { status: 200, body: String::new(), kind: None };
        self.finish(state, self.site, body);
        if let Some(draft) = self.drafts.last_mut() {
            draft.is_unanswered = true;
        }
    }

    /// Ends a path through the directives with a route.
    fn finish(&mut self, state: RequestState, from: &Directive, answer_of: StepAnswer) {
        let mut plugins: YamlMembers = Vec::new();
        let mut target = YamlMembers::new();
        let is_guarded_late = state.auth.iter().any(|(name, _)| name == "forward-auth");
        plugins.extend(state.auth.iter().cloned());
        plugins.extend(state.policies.iter().cloned());
        let answer_of = match answer_of {
            StepAnswer::Redirect(_) if is_guarded_late => self.closed(from, "a redirect behind `forward_auth`"),
            answer_of => answer_of,
        };
        match answer_of {
            StepAnswer::Body { status, body, kind } => {
                // What `respond` says is no error, whatever its status.
                plugins.retain(|(name, _)| name != "error-page" || from.name != "respond");
                plugins.extend(state.response_fields.response_rewrite());
                plugins.push(match state.auth.is_empty() {
                    true => answer(status, &body, kind),
                    false => answer_behind_plugins(status, &body, kind),
                });
            }
            StepAnswer::Redirect(options) => {
                plugins.extend(state.response_fields.response_rewrite());
                plugins.push(("redirect".to_owned(), options));
            }
            StepAnswer::Upstream(members) => {
                plugins.extend(state.proxy_rewrite());
                plugins.extend(state.response_fields.response_rewrite());
                target = members;
            }
            StepAnswer::Closed => plugins = vec![answer(503, "", None)],
        }
        self.drafts.push(RouteDraft {
            place: from.place.clone(),
            head: from.head(),
            conditions: state.conditions,
            plugins,
            target,
            is_unanswered: false,
        });
    }
}

/// Whether leaving the directive out affects neither access control nor the choice of the upstream.
fn is_harmless(name: &str) -> bool {
    const HARMLESS: [&str; 17] = [
        "header",
        "request_header",
        "encode",
        "tracing",
        "map",
        "vars",
        "fs",
        "root",
        "log_append",
        "skip_log",
        "log_skip",
        "log_name",
        "push",
        "templates",
        "intercept",
        "copy_response_headers",
        "try_files",
    ];
    HARMLESS.contains(&name)
}
