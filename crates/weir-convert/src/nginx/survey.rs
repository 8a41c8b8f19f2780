//! Reports the directives that no other module converts, with the alternatives.

use super::Conversion;
use super::auth_request::AUTH_REQUEST;
use super::basic_auth;
use super::defaults::is_default;
use super::directives::{CLOSED, DirectiveFate, OF_THE_NODE, REFUSING, SAME, UNREAD, fate, is_as_here, is_off};
use super::stream;
use super::syntax::Directive;
use super::target_cases;
use super::tracing;

/// Adds a finding for each directive without a counterpart, and for each that is not read where it is written.
pub(super) fn report(conversion: &mut Conversion) {
    let (main, http) = (conversion.main, conversion.http);
    for directive in if main.is_empty() { http } else { main } {
        judge(conversion, directive, BlockKind::Node { has_routes: main.is_empty() });
    }
}

/// The block around a directive.
#[derive(Clone, Copy)]
enum BlockKind {
    /// The settings of the node are read from here. `has_routes`: directives here apply to routes, too.
    Node {
        has_routes: bool,
    },
    Inner,
}

fn judge(conversion: &mut Conversion, directive: &Directive, within: BlockKind) {
    let name = directive.name.as_str();
    if basic_auth::is_converted(directive) {
        return;
    }
    match fate(name) {
        DirectiveFate::Needless => return,
        // Told where they are in effect.
        DirectiveFate::Closes(_) if [UNREAD, AUTH_REQUEST].contains(&name) => return,
        DirectiveFate::Instead(_) if is_for_websockets(directive) || is_default(directive) || is_as_here(directive) => {
            return;
        }
        DirectiveFate::Instead(_) if target_cases::is_converted(conversion, directive) => return,
        DirectiveFate::Instead(_) if conversion.is_covered(directive) => return,
        DirectiveFate::Instead(_) if tracing::is_sampler(conversion, directive) => return,
        DirectiveFate::Instead(instead) => {
            return conversion.lost(&directive.place, format!("`{}`: {instead}", directive.head()));
        }
        DirectiveFate::Closes(_) if REFUSING.iter().any(|(known, _)| name == *known) && is_off(directive) => return,
        DirectiveFate::Closes(instead) => {
            let closes = !is_off(directive) && !matches!(within, BlockKind::Node { has_routes: false });
            let closed = if closes { format!("; {CLOSED}") } else { String::new() };
            return conversion.lost(&directive.place, format!("`{}`: {instead}{closed}", directive.head()));
        }
        DirectiveFate::Carried => {}
    }
    if matches!(within, BlockKind::Inner) && (SAME.contains(&name) || OF_THE_NODE.contains(&name)) {
        return only_for_all(conversion, directive);
    }
    if name == "stream" {
        return stream::report(conversion, directive.children());
    }
    let inside = match name {
        "http" => BlockKind::Node { has_routes: true },
        "server" if conversion.only_server().is_some() => BlockKind::Node { has_routes: true },
        _ => BlockKind::Inner,
    };
    // The content of these is checked where it is converted.
    if !["upstream", "match", "otel_exporter"].contains(&name) {
        let is_told = |child: &&Directive| name == "location" && is_with_fallback(child);
        directive.children().iter().filter(|child| !is_told(child)).for_each(|child| judge(conversion, child, inside));
    }
}

/// Whether a directive names a location for requests without a file, which is told with the routes.
fn is_with_fallback(directive: &Directive) -> bool {
    directive.name == "try_files" && directive.arguments.last().is_some_and(|last| last.starts_with('@'))
}

/// A setting of one server or location, which Weir has for the whole node only.
fn only_for_all(conversion: &mut Conversion, directive: &Directive) {
    let of_node = conversion.scope().last(&directive.name);
    if of_node.is_none_or(|of_node| of_node.arguments != directive.arguments) {
        let also = match (directive.name.as_str(), directive.argument(0)) {
            ("access_log", "off") => "",
            ("access_log", log) if log.starts_with("syslog:") => ", or `syslog` in the routes",
            ("access_log", _) => ", or `file-logger` in the routes, whose records are JSON",
            _ => "",
        };
        let text = format!(
            "`{}`: this is a setting of the whole node; write it there if all servers need it{also}",
            directive.head()
        );
        conversion.lost(&directive.place, text);
    }
}

/// The map that nginx needs for WebSocket upgrades; Weir needs nothing for them.
fn is_for_websockets(directive: &Directive) -> bool {
    directive.name == "map" && directive.argument(0) == "$http_upgrade"
}
