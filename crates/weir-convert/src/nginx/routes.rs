//! The routes of a server: its locations, and what answers before them.

use super::Conversion;
use super::location::{Location, Matching, Region, cover, fallback, fallbacks, regions};
use super::rewrite;
use super::scope::BlockScope;
use super::selector::{ServerBlock, ServerSelector};
use super::syntax::Directive;
use super::target_split::SplitTarget;
use super::{access, auth_request, client_address, echo, error_pages, mirroring};
use super::{policies, proxy, redirects, reverse, sign_in, target_cases, target_split};
use crate::answer::answer;
use crate::login::refusal;
use crate::output::{ConvertedResource, one_or_many};
use crate::pattern::{regex_quoted, supported};
use crate::yaml::{Yaml, YamlMembers};

/// Adds a route that refuses the requests of one selector.
pub(super) fn refuse(conversion: &mut Conversion, server: &ServerBlock, selector: &ServerSelector) {
    let uris = with_all(&selector.elsewhere);
    add(
        conversion,
        selector,
        server.directive,
        ConvertedRoute { uris, plugins: vec![refusal()], ..ConvertedRoute::default() },
    );
}

/// Every path, also where others have routes for more specific ones.
fn with_all(paths: &[String]) -> Vec<String> {
    let mut all = vec!["/*".to_owned()];
    for path in paths {
        if !all.contains(path) {
            all.push(path.clone());
        }
    }
    all
}

/// The paths of a server's routes.
pub(super) fn paths(scope: &BlockScope) -> Vec<String> {
    let regions = regions(scope);
    let slashes = regions.iter().filter_map(|region| without_slash(&region.location)).map(str::to_owned);
    regions.iter().flat_map(|region| region.uris.iter().cloned()).chain(slashes).collect()
}

/// Adds the routes of a server for the requests of one selector.
pub(super) fn carry_over(conversion: &mut Conversion, server: &ServerBlock, selector: &ServerSelector) {
    let scope = &server.scope;
    named_locations(conversion, scope.own());
    let mut regions = regions(scope);
    let uncovered = cover(&mut regions, &selector.elsewhere);
    // Each location needs as many priorities as it has routes.
    let step =
        regions.iter().map(|region| 1 + early_directives(&region.location.scope).count() as i64).max().unwrap_or(1);
    let step = step + i64::from(regions.iter().any(|region| limit_except(&region.location).is_some()));
    regions.iter_mut().for_each(|region| region.priority *= step);
    let top = regions.iter().map(|region| region.priority).max().unwrap_or(0) + step;
    let own: Vec<String> = regions.iter().flat_map(|region| region.uris.iter().cloned()).collect();
    let known = with_all(&[own, uncovered.clone()].concat());
    let early = early_directives(scope).count() as i64;
    // Also the paths for which redirects are added below.
    let slashes = regions.iter().filter_map(|region| redirected(&region.location, &known)).map(str::to_owned);
    let everywhere = with_all(&[known.clone(), slashes.collect()].concat());
    if let Some(returns) = early_answers(conversion, scope, selector, (&everywhere, top + early)) {
        let plugins = rewrite::returned(conversion, scope, returns, None);
        let uris = with_all(&selector.elsewhere);
        return add(conversion, selector, returns, ConvertedRoute { uris, plugins, ..ConvertedRoute::default() });
    }
    for region in &regions {
        convert_location(conversion, selector, region, step);
        with_slash(conversion, selector, region, &known);
    }
    let is_for_all = regions.iter().any(|region| region.priority == 0 && region.uris[0] == "/*");
    if !is_for_all && (!selector.hosts.is_empty() || selector.priority > 0) {
        // Otherwise, routes of another server would match requests that no location of this one matches.
        let plugins = vec![answer(404, "", None)];
        let uris = with_all(&uncovered);
        add(conversion, selector, server.directive, ConvertedRoute { uris, plugins, ..ConvertedRoute::default() });
    }
}

/// Reports the locations that nginx uses for internal redirects only.
fn named_locations(conversion: &mut Conversion, block: &[Directive]) {
    let is_named = |child: &&Directive| child.name == "location" && Matching::of(child).is_none();
    let used = fallbacks(block, block);
    let is_used = |location: &Directive| used.iter().any(|used| used.place == location.place);
    let is_unused = |location: &&Directive| {
        !is_used(location) && !error_pages::is_text(block, location) && !sign_in::is_page(block, location)
    };
    for location in block.iter().filter(is_named).filter(is_unused) {
        let text = format!("`{}`: there are no internal redirects, such as those of `error_page`", location.head());
        conversion.lost(&location.place, text);
    }
}

#[derive(Default)]
struct ConvertedRoute {
    uris: Vec<String>,
    vars: Vec<Yaml>,
    priority: i64,
    plugins: YamlMembers,
    /// The members `upstream`, `upstream_id` and `timeout`.
    target: YamlMembers,
}

fn add(conversion: &mut Conversion, selector: &ServerSelector, from: &Directive, route: ConvertedRoute) {
    let mut members = YamlMembers::new();
    members.extend(one_or_many("uri", "uris", &route.uris));
    members.extend(one_or_many("host", "hosts", &selector.hosts));
    let vars = [selector.vars.clone(), route.vars].concat();
    if !vars.is_empty() {
        members.push(("vars".to_owned(), Yaml::List(vars)));
    }
    let priority = selector.priority + route.priority;
    if priority != 0 {
        members.push(("priority".to_owned(), Yaml::Integer(priority)));
    }
    members.extend(route.target);
    let plugins = [selector.plugins.clone(), route.plugins].concat();
    if has_expression(&plugins) && !conversion.keeps_slashes() {
        members.push(("merge_slashes".to_owned(), Yaml::Boolean(true)));
    }
    if !plugins.is_empty() {
        members.push(("plugins".to_owned(), Yaml::Map(plugins)));
    }
    let item = ConvertedResource::new(&from.place, from.head(), members);
    conversion.converted.routes.push(item);
}

/// A condition on the path.
fn condition(operator: &str, value: &str) -> Yaml {
    Yaml::texts(["uri", operator, value])
}

/// Whether an expression changes the path. nginx removes empty segments before, and Weir does so for a route with `merge_slashes`.
fn has_expression(plugins: &YamlMembers) -> bool {
    let is_expression = |(name, _): &(String, Yaml)| name == "regex_uri";
    plugins.iter().any(|(_, options)| matches!(options, Yaml::Map(members) if members.iter().any(is_expression)))
}

/// What a `uri` cannot say of the path.
fn path_conditions(conversion: &mut Conversion, location: &Location) -> Vec<Yaml> {
    match &location.matching {
        Matching::Regex { pattern, ignores_case } => {
            let operator = if *ignores_case { "~*" } else { "~~" };
            vec![condition(operator, pattern)]
        }
        // In a `uri` these characters begin what stands for any text.
        Matching::Exact(path) if path.contains(['*', ':']) => vec![condition("==", path)],
        Matching::Prefix { path, .. } if path.contains("/:") || path.contains("/*") => {
            if path.contains("/:") {
                let text = format!("`location {path}`: only paths of as many segments are matched, not those below");
                conversion.differs(&location.directive.place, text);
            }
            vec![condition("~~", &format!("^{}", regex_quoted(path)))]
        }
        Matching::Exact(_) | Matching::Prefix { .. } => Vec::new(),
    }
}

fn convert_location(conversion: &mut Conversion, selector: &ServerSelector, region: &Region, step: i64) {
    let Region { location, uris, priority } = region;
    let selector = &ServerSelector { plugins: client_address::plugin(conversion, &location.scope), ..selector.clone() };
    let vars = path_conditions(conversion, location);
    if let Matching::Regex { pattern, .. } = &location.matching
        && supported(pattern).is_none()
    {
        return unreadable(conversion, selector, region);
    }
    let route = |vars: Vec<Yaml>, priority: i64, (plugins, target): (YamlMembers, YamlMembers)| ConvertedRoute {
        uris: uris.clone(),
        vars,
        priority,
        plugins,
        target,
    };
    if location.is_internal {
        let (server, directive) = (location.scope.server(), location.directive);
        let is_used = auth_request::is_asked(server, directive)
            || mirroring::is_for_copies(server, directive)
            || error_pages::is_text(server, directive);
        let text = format!(
            "`location {}`: there are no internal redirects, nor by `X-Accel-Redirect`; the route answers with 404",
            location.directive.arguments.join(" ")
        );
        if !is_used {
            conversion.lost(&location.directive.place, text);
        }
        let mut plugins = policies::added_fields(conversion, &location.scope);
        plugins.push(answer(404, "", None));
        let answer = (plugins, Vec::new());
        return add(conversion, selector, location.directive, route(vars, *priority, answer));
    }
    let inner = ServerSelector { vars: [selector.vars.clone(), vars.clone()].concat(), ..selector.clone() };
    let returns = early_answers(conversion, &location.scope, &inner, (uris, priority + step - 1));
    if let Some(except) = limit_except(location).filter(|_| returns.is_none()) {
        let methods = [vars.clone(), vec![rewrite::other_methods(except)]].concat();
        let scope = location.scope.inside(except.children());
        let handled = handled(conversion, &Location { scope, ..location.clone() }, None);
        add(conversion, selector, except, route(methods, priority + 1, handled));
    }
    let handled = handled(conversion, location, returns);
    add(conversion, selector, location.directive, route(vars, *priority, handled));
}

/// A location whose expression Weir cannot read. Other locations take its requests, unless it refuses some of them.
fn unreadable(conversion: &mut Conversion, selector: &ServerSelector, region: &Region) {
    let Region { location, uris, priority } = region;
    let directive = location.directive;
    let mut text = format!(
        "`{}`: look-around and back-references are not supported; other locations take its requests",
        directive.head()
    );
    if location.is_internal || access::is_restricted(directive) {
        text = format!(
            "`{}`: look-around and back-references are not supported, and it refuses requests; {} answer with 503",
            directive.head(),
            uris.join(" ")
        );
        let route = ConvertedRoute {
            uris: uris.clone(),
            priority: *priority,
            plugins: vec![refusal()],
            ..ConvertedRoute::default()
        };
        add(conversion, selector, directive, route);
    }
    conversion.lost(&directive.place, text);
}

/// The block for all methods but those that it names.
fn limit_except<'a>(location: &Location<'a>) -> Option<&'a Directive> {
    location.directive.children().iter().find(|child| child.name == "limit_except")
}

/// The path of a proxied location without its final slash, which nginx redirects to it.
fn without_slash<'a>(location: &'a Location) -> Option<&'a str> {
    let Matching::Prefix { path, .. } = &location.matching else { return None };
    let is_proxied =
        location.directive.children().iter().any(|child| ["proxy_pass", "grpc_pass"].contains(&child.name.as_str()));
    path.strip_suffix('/').filter(|without| !without.is_empty() && is_proxied)
}

/// The same, if no route has it.
fn redirected<'a>(location: &'a Location, known: &[String]) -> Option<&'a str> {
    let is_taken = |path: &str| known.iter().any(|uri| uri == path || uri.strip_suffix('*') == Some(path));
    without_slash(location).filter(|without| !is_taken(without))
}

/// Adds nginx's redirect for the path of a proxied location without its final slash.
fn with_slash(conversion: &mut Conversion, selector: &ServerSelector, region: &Region, known: &[String]) {
    let Region { location, .. } = region;
    let Some(without) = redirected(location, known) else { return };
    let uri = Yaml::text(format!("{without}/$is_args$args"));
    let mut plugins = policies::added_fields(conversion, &location.scope);
    plugins.push(("redirect".to_owned(), Yaml::map([("uri", uri), ("ret_code", Yaml::Integer(301))])));
    let route = ConvertedRoute { uris: vec![without.to_owned()], plugins, ..ConvertedRoute::default() };
    add(conversion, selector, location.directive, route);
}

/// The plugins of a location, and the members for its upstream. `returns`: the location answers with this `return`, which nginx
/// does before it looks at limits and access.
fn handled(
    conversion: &mut Conversion,
    location: &Location,
    returns: Option<&Directive>,
) -> (YamlMembers, YamlMembers) {
    let Location { directive, matching, scope, .. } = location;
    if let Some(named) = fallback(scope.server(), directive).filter(|_| returns.is_none()) {
        return without_files(conversion, location, named);
    }
    if let Some(returns) = returns {
        let mut plugins = policies::of_answer(conversion, scope);
        plugins.extend(rewrite::returned(conversion, scope, returns, Some(matching)));
        return (plugins, Vec::new());
    }
    let own = |name: &str| directive.children().iter().find(|child| child.name == name);
    let mut plugins = policies::plugins(conversion, scope);
    let is_closed = plugins.contains(&refusal());
    let files = own("try_files").filter(|files| files.arguments.last().is_some_and(|last| last.starts_with('@')));
    if let Some(files) = files {
        conversion.lost(&files.place, format!("`{}`: static files are not served", files.head()));
    }
    let Some(pass) = own("proxy_pass").or_else(|| own("grpc_pass")) else {
        if access::refuses_all(&plugins) {
            // `ip-restriction` comes after the answer of a route, which would be another one.
            plugins.retain(|(name, _)| name != "ip-restriction");
            answer_all(&mut plugins, answer(403, "", None));
            return (plugins, Vec::new());
        }
        if let Some(response) = echoed(conversion, location, &plugins).filter(|_| !is_closed) {
            plugins.push(response);
            return (plugins, Vec::new());
        }
        let is_redirect = |child: &Directive| child.name == "rewrite" && redirects::redirecting(child).is_some();
        // The redirects are routes of their own.
        let rest = if directive.children().iter().any(is_redirect) { "what no `rewrite` redirects: " } else { "" };
        let text = format!(
            "`location {}`: {rest}{}; the route answers with {}",
            directive.arguments.join(" "),
            content_of(directive),
            if is_closed { 503 } else { 404 }
        );
        conversion.lost(&directive.place, text);
        if !is_closed {
            answer_all(&mut plugins, answer(404, "", None));
        }
        return (plugins, Vec::new());
    };
    proxied(conversion, location, pass, plugins, directive.children().iter().collect())
}

/// Adds an answer for all requests, in place of the one for some that the same plugin may give.
fn answer_all(plugins: &mut YamlMembers, answer: (String, Yaml)) {
    plugins.retain(|(name, _)| *name != answer.0);
    plugins.push(answer);
}

/// The response of a location that writes texts by itself. `plugins`: what controls its access, among others.
fn echoed(conversion: &mut Conversion, location: &Location, plugins: &YamlMembers) -> Option<(String, Yaml)> {
    const CONTROLS: [&str; 3] = ["ip-restriction", "fault-injection", "redirect"];
    let is_control = |(name, _): &(String, Yaml)| {
        name.ends_with("-auth") || name.starts_with("limit-") || CONTROLS.contains(&name.as_str())
    };
    echo::response(conversion, location, plugins.iter().any(is_control))
}

/// Why what a location without an upstream of HTTP answers is not there.
fn content_of(location: &Directive) -> &'static str {
    const OTHERS: [(&str, &str); 11] = [
        ("stub_status", "metrics are at the address `status`"),
        ("vhost_traffic_status_display", "metrics are at the address `status`"),
        ("check_status", "the health of endpoints is at the address `status`"),
        ("js_content", "JavaScript does not run here"),
        ("nchan_", "events are published and delivered by a hub"),
        ("echo", "it does more than to write a text"),
        ("fastcgi_pass", "FastCGI is not spoken"),
        ("uwsgi_pass", "uwsgi is not spoken"),
        ("scgi_pass", "SCGI is not spoken"),
        ("memcached_pass", "the protocol of memcached is not spoken"),
        ("content_by_lua", "Lua does not run here"),
    ];
    let has = |name: &str| location.children().iter().any(|child| child.name.starts_with(name));
    OTHERS.iter().find(|(name, _)| has(name)).map_or("static files are not served", |(_, text)| text)
}

/// The plugins and the upstream of a location whose requests are all answered by a named location, since there are no files.
fn without_files(conversion: &mut Conversion, location: &Location, named: &Directive) -> (YamlMembers, YamlMembers) {
    let files = location.directive.children().iter().find(|child| child.name == "try_files");
    if let Some(files) = files {
        let text = format!("`{}`: files are not looked for; all requests are for the named location", files.head());
        conversion.differs(&files.place, text);
    }
    for rate in location.directive.children().iter().filter(|child| child.name == "limit_rate") {
        let text = format!("`{}`: it is the rate of files; the named location answers at its own", rate.head());
        conversion.lost(&rate.place, text);
    }
    let scope = location.scope.of_server().inside(named.children());
    let plugins = policies::behind_files(conversion, &location.scope, &scope, files.unwrap_or(named));
    let children = named.children();
    let Some(pass) = children.iter().find(|child| child.name == "proxy_pass") else {
        return (plugins, Vec::new());
    };
    // What the location makes of the path, the named location gets.
    let rewrites = location.directive.children().iter().chain(children).collect();
    proxied(conversion, &Location { scope, ..location.clone() }, pass, plugins, rewrites)
}

/// The plugins, with more for `proxy_pass`, and the upstream. `rewrites`: what may change the path before.
fn proxied(
    conversion: &mut Conversion,
    location: &Location,
    pass: &Directive,
    mut plugins: YamlMembers,
    rewrites: Vec<&Directive>,
) -> (YamlMembers, YamlMembers) {
    let Location { matching, scope, .. } = location;
    // `$request_uri` is the path as the client sent it.
    let keeps_path = pass.argument(0).ends_with("$request_uri");
    let is_rewritten = !keeps_path && rewrites.iter().any(|rewrite| redirects::changes_path(rewrite));
    let cases = target_cases::of(conversion, pass, is_rewritten);
    let split = cases.map(|cases| target_split::of(conversion, (scope, matching), pass, &cases, is_rewritten));
    let (mut changes, split) = match split {
        Some(SplitTarget { changes, plugin, target }) => (changes, Some((plugin, target))),
        None => (proxy::rewritten(conversion, scope, pass, matching, is_rewritten), None),
    };
    if let Some(paths) = rewrite::paths(conversion, rewrites.into_iter()).filter(|_| !keeps_path) {
        changes.retain(|(name, _)| name != "regex_uri" && name != "uri");
        changes.insert(0, paths);
    }
    access::close_if_changed(conversion, scope, pass, &mut plugins, &changes);
    let is_closed = plugins.contains(&refusal());
    if !changes.is_empty() {
        plugins.push(("proxy-rewrite".to_owned(), Yaml::Map(changes)));
    }
    let target = match split {
        Some((plugin, target)) => {
            plugins.extend(plugin);
            target
        }
        None => proxy::members(conversion, scope, pass),
    };
    match target {
        Some(target) => {
            plugins.extend(reverse::plugin(conversion, scope, pass, matching));
            (plugins, target)
        }
        None => {
            if !is_closed {
                conversion.lost(&pass.place, format!("`{}`: the route answers with 502", pass.head()));
                answer_all(&mut plugins, answer(502, "", None));
            }
            (plugins, Vec::new())
        }
    }
}

/// The directives that may answer before the rest of their block, in their order: up to the first `return`, which always does.
fn early_directives<'a>(scope: &BlockScope<'a>) -> impl Iterator<Item = &'a Directive> + use<'a> {
    let is_early = |directive: &&Directive| ["if", "rewrite", "return"].contains(&directive.name.as_str());
    let mut has_ended = false;
    scope.own().iter().filter(is_early).take_while(move |directive| {
        let is_reached = !has_ended;
        has_ended |= directive.name == "return";
        is_reached
    })
}

/// Adds routes with precedence for the directives that answer some requests before the rest of their block, the first with this
/// priority. Returns the `return` that answers all other requests.
fn early_answers<'a>(
    conversion: &mut Conversion,
    scope: &BlockScope<'a>,
    selector: &ServerSelector,
    (uris, priority): (&[String], i64),
) -> Option<&'a Directive> {
    let mut answering = 0;
    for directive in early_directives(scope) {
        let answer = match directive.name.as_str() {
            "return" => return Some(directive),
            "rewrite" => rewritten(conversion, scope, directive),
            _ => rewrite::conditional(conversion, scope, directive),
        };
        let Some((vars, plugins)) = answer else { continue };
        let priority = priority - answering;
        answering += 1;
        let route = ConvertedRoute { uris: uris.to_vec(), vars, priority, plugins, ..ConvertedRoute::default() };
        add(conversion, selector, directive, route);
    }
    None
}

/// The requests that a `rewrite` answers, and the plugins for them: it redirects, or nginx would look for a location again, and the
/// one that it finds may refuse the request. One of a server that changes the path is reported; in a location it is converted
/// with the upstream.
fn rewritten(
    conversion: &mut Conversion,
    scope: &BlockScope,
    directive: &Directive,
) -> Option<(Vec<Yaml>, YamlMembers)> {
    let requests = |pattern: &str| vec![Yaml::List(vec![Yaml::text("uri"), Yaml::text("~~"), Yaml::text(pattern)])];
    let looks_again = scope.is_of_server() || directive.argument(2) != "break";
    let may_be_refused = looks_again && access::has_restricted_locations(scope.server());
    let Some(pattern) = supported(directive.argument(0)) else {
        let text = format!("`{}`: look-around and back-references are not supported", directive.head());
        let closed = if may_be_refused { "; all requests that reach it are answered with 503" } else { "" };
        conversion.lost(&directive.place, format!("{text}{closed}"));
        return may_be_refused.then(|| (Vec::new(), vec![refusal()]));
    };
    if let Some((pattern, plugin)) = redirects::redirecting(directive) {
        let mut plugins = policies::added_fields(conversion, scope);
        plugins.push(plugin);
        return Some((requests(&pattern), plugins));
    }
    if may_be_refused {
        let text = format!(
            "`{}`: the location of the new path may refuse the request; these requests are answered with 503",
            directive.head()
        );
        conversion.lost(&directive.place, text);
        return Some((requests(&pattern), vec![refusal()]));
    }
    if scope.is_of_server() {
        let text =
            format!("`{}` outside of a location: write `proxy-rewrite` in the affected routes", directive.head());
        conversion.lost(&directive.place, text);
    }
    None
}
