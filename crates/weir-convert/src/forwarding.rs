//! Fields such as `X-Forwarded-Proto` in conditions and texts. Other gateways believe every client in them; here they count only if a
//! trusted peer sends them.

use weir_plugin::proto::Known;

use crate::output::Converted;
use crate::yaml::{Yaml, YamlMembers};

/// Whether a variable is such a field. `X-Forwarded-For` and `X-Real-IP` are read as they come.
pub(crate) fn is_forwarding(variable: &str) -> bool {
    let field = variable.strip_prefix("http_").map(|field| Known::parse(field.replace('_', "-").as_bytes()));
    let is_list = |known: Known| matches!(known, Known::XForwardedFor | Known::XRealIp | Known::Forwarded);
    field.is_some_and(|known| known.is_forwarding() && !is_list(known))
}

/// Reports the routes that read such a field.
pub(crate) fn report(converted: &mut Converted) {
    let is_trusted = converted.settings.iter().any(|(name, _)| name == "trusted_addresses");
    let mut found = Vec::new();
    for route in &converted.routes {
        if let (Some(name), Some((place, _))) = (in_members(&route.members), &route.comment) {
            found.push((place.clone(), name));
        }
    }
    for (place, name) in found {
        let told = format!("`${name}` counts only if an address in `trusted_addresses` sends it");
        match is_trusted {
            true => converted.differs(&place, told),
            false => {
                let text =
                    "otherwise the gateway tells what it sees itself; write the addresses of your load balancers there";
                converted.lost(&place, format!("{told}: {text}"));
            }
        }
    }
}

fn in_members(members: &YamlMembers) -> Option<String> {
    members.iter().find_map(|(_, value)| in_value(value))
}

fn in_value(value: &Yaml) -> Option<String> {
    match value {
        Yaml::Text(text) => {
            let mut words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
            words.find(|word| is_forwarding(word)).map(str::to_owned)
        }
        Yaml::List(items) => items.iter().find_map(in_value),
        Yaml::Map(members) => in_members(members),
        _ => None,
    }
}
