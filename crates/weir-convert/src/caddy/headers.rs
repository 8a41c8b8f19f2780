//! `header`, `request_header`, `header_down` and `header_up`: header fields to add, set and remove.

use super::fields::FieldKind;
use super::state::{RequestState, TextFault};
use crate::directive::Directive;
use crate::output::Converted;

/// `header`, or `header_down` of a `reverse_proxy`.
pub(super) fn response(converted: &mut Converted, state: &mut RequestState, from: &Directive, lines: &[Vec<String>]) {
    for line in lines {
        change(converted, state, from, line, false);
    }
    let fields = &mut state.response_fields;
    if let Some(name) = fields.without_mixed_defaults() {
        let text =
            format!("`header ?{}`: a field that is set unless the response has it stands alone in a route", name);
        converted.lost(&from.place, text);
    }
}

/// `request_header`, or `header_up` of a `reverse_proxy`.
pub(super) fn request(converted: &mut Converted, state: &mut RequestState, from: &Directive, lines: &[Vec<String>]) {
    for line in lines {
        change(converted, state, from, line, true);
    }
}

/// The changes of a directive, which are its arguments, or the lines of its block.
pub(super) fn lines(directive: &Directive, arguments: &[String]) -> Vec<Vec<String>> {
    let behind = (!arguments.is_empty()).then(|| arguments.to_vec());
    let within = directive.children().iter().map(|line| [vec![line.name.clone()], line.arguments.clone()].concat());
    behind.into_iter().chain(within).collect()
}

fn change(converted: &mut Converted, state: &mut RequestState, from: &Directive, line: &[String], is_request: bool) {
    let (field, values) = match line {
        [field, values @ ..] => (field.trim_end_matches(':'), values),
        [] => return,
    };
    let mut lost = |why: &str| {
        converted.lost(&from.place, format!("`{} {}`: {why}", from.name, line.join(" ")));
    };
    if field == "defer" && values.is_empty() {
        return;
    }
    let (kind, name) = match field.split_at_checked(1) {
        Some((kind @ ("+" | "-" | "?" | ">"), name)) => (kind, name),
        _ => ("", field),
    };
    if name.is_empty() || name.contains('*') {
        return lost("only fields whose whole names are given are converted");
    }
    if kind == "-" {
        let fields = if is_request { &mut state.request_fields } else { &mut state.response_fields };
        return fields.remove(name);
    }
    let value = match values {
        [] if kind.is_empty() => String::new(),
        [value] => match state.text(value) {
            Ok(value) => value,
            Err(TextFault(why)) => return lost(&why),
        },
        _ => return lost("a part of a value cannot be replaced"),
    };
    let fields = if is_request { &mut state.request_fields } else { &mut state.response_fields };
    match kind {
        "+" => fields.change(FieldKind::Add, name, value),
        "?" => fields.change(FieldKind::Default, name, value),
        _ => fields.change(FieldKind::Set, name, value),
    }
}
