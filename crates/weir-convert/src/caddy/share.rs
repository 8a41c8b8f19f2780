//! Extracts what several routes have in common, so that it is written once.

use crate::output::{Converted, ConvertedResource};
use crate::yaml::{Yaml, YamlMembers};

/// Turns upstreams that several routes use into resources; others stay inline.
pub(super) fn upstreams(converted: &mut Converted) {
    let mut known: Vec<(Yaml, usize)> = Vec::new();
    for route in &converted.routes {
        for (_, upstream) in route.members.iter().filter(|(name, _)| name == "upstream") {
            match known.iter_mut().find(|(same, _)| same == upstream) {
                Some((_, count)) => *count += 1,
                None => known.push((upstream.clone(), 1)),
            }
        }
    }
    let Converted { routes, upstreams, .. } = converted;
    let mut taken: Vec<String> = Vec::new();
    for (upstream, _) in known.into_iter().filter(|(_, count)| *count > 1) {
        let Yaml::Map(members) = &upstream else { continue };
        let id = id(members, &taken);
        taken.push(id.clone());
        let mut place = None;
        for route in routes.iter_mut() {
            for member in route.members.iter_mut().filter(|(name, value)| name == "upstream" && *value == upstream) {
                *member = ("upstream_id".to_owned(), Yaml::text(&id));
                place = place.or_else(|| route.comment.clone());
            }
        }
        let members = [vec![("id".to_owned(), Yaml::text(id))], members.clone()].concat();
        upstreams.push(ConvertedResource { members, comment: place });
    }
}

/// An id from the name of the first host, or from its port.
fn id(members: &[(String, Yaml)], taken: &[String]) -> String {
    let node = match members.iter().find(|(name, _)| name == "nodes") {
        Some((_, Yaml::Map(nodes))) => nodes.first().map_or("", |(node, _)| node),
        _ => "",
    };
    let host = node.split([':', '.']).next().unwrap_or_default();
    let is_name = host.starts_with(|char: char| char.is_ascii_alphabetic())
        && host.chars().all(|char| char.is_ascii_alphanumeric() || char == '-');
    let port = node.rsplit(':').next().filter(|port| port.parse::<u16>().is_ok());
    let name = match port {
        _ if is_name => host.to_owned(),
        Some(port) => format!("upstream-{port}"),
        None => "upstream".to_owned(),
    };
    let mut id = name.clone();
    let mut number = 1;
    while taken.contains(&id) {
        number += 1;
        id = format!("{name}-{number}");
    }
    id
}

/// Turns compression that all routes have in the same way into a global rule.
pub(super) fn compression(converted: &mut Converted) {
    if converted.routes.len() < 2 {
        return;
    }
    let mut common = YamlMembers::new();
    for name in ["brotli", "gzip"] {
        let of = |route: &ConvertedResource| plugins(route).iter().find(|(own, _)| own == name).cloned();
        let first = converted.routes.first().and_then(of);
        if first.is_some() && converted.routes.iter().all(|route| of(route) == first) {
            common.extend(first);
        }
    }
    let Some(place) = converted.routes.first().map(|route| route.comment.clone()).filter(|_| !common.is_empty()) else {
        return;
    };
    for route in &mut converted.routes {
        retain_plugins(route, |plugin| !common.contains(plugin));
    }
    let members = vec![("id".to_owned(), Yaml::text("encode")), ("plugins".to_owned(), Yaml::Map(common))];
    let comment = place.map(|(place, _)| (place, "encode".to_owned()));
    converted.global_rules.push(ConvertedResource { members, comment });
}

fn plugins(route: &ConvertedResource) -> &[(String, Yaml)] {
    match route.members.iter().find(|(name, _)| name == "plugins") {
        Some((_, Yaml::Map(plugins))) => plugins,
        _ => &[],
    }
}

fn retain_plugins(route: &mut ConvertedResource, is_kept: impl Fn(&(String, Yaml)) -> bool) {
    for (_, value) in route.members.iter_mut().filter(|(name, _)| name == "plugins") {
        if let Yaml::Map(plugins) = value {
            plugins.retain(&is_kept);
        }
    }
    route
        .members
        .retain(|(name, value)| name != "plugins" || !matches!(value, Yaml::Map(plugins) if plugins.is_empty()));
}

/// Removes lists of consumers that contain all consumers.
pub(super) fn consumers(converted: &mut Converted) {
    let count = converted.consumers.len();
    let admits_all = |(name, options): &(String, Yaml)| {
        let Yaml::Map(members) = options else { return false };
        name == "consumer-restriction"
            && matches!(members.first(), Some((_, Yaml::List(names))) if names.len() == count)
    };
    for route in &mut converted.routes {
        retain_plugins(route, |plugin| !admits_all(plugin));
    }
}
