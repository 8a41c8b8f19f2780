//! Converts JMeter test plans into load plans: thread groups with HTTP samplers. What has no counterpart is reported.

use std::collections::BTreeMap;

use percent_encoding::utf8_percent_encode;
use quick_xml::{
    Reader, XmlVersion,
    events::{BytesStart, Event},
};

use crate::engine::{LoadPlan, LoadTimeouts, Pacing, RequestBody, RequestTemplate, Selection, StopCondition, Think};
use crate::uri_characters::RESERVED;

/// Why a test plan cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("byte {byte}: {source}")]
    Syntax { byte: u64, source: quick_xml::Error },
    #[error("{group}: {property}: \"{text}\" is not a number")]
    NotANumber { group: String, property: String, text: String },
    #[error("{group}: it loops forever without a scheduler; give the thread group a duration")]
    Endless { group: String },
    #[error("no thread group with an HTTP sampler in the plan. {}", .notes.join(". "))]
    NoGroup { notes: Vec<String> },
}

/// The result of an import.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// One plan for each enabled thread group that has a sampler, with the group's name.
    pub groups: Vec<(String, LoadPlan)>,
    /// What could not be imported, and what was assumed, as texts.
    pub notes: Vec<String>,
}

#[derive(Debug, Default)]
struct ThreadGroup {
    name: String,
    /// Properties by their JMeter names, such as `ThreadGroup.num_threads`.
    properties: BTreeMap<String, String>,
    samplers: Vec<JmxSampler>,
    headers: Vec<(String, String)>,
    think_ms: Option<String>,
}

impl ThreadGroup {
    fn not_a_number(&self, property: &str, text: &str) -> ImportError {
        let (group, property, text) = (self.name.clone(), property.to_owned(), text.to_owned());
        ImportError::NotANumber { group, property, text }
    }
}

#[derive(Debug, Default)]
struct JmxSampler {
    name: String,
    properties: BTreeMap<String, String>,
    arguments: Vec<(String, String)>,
}

/// Elements that structure a plan, but send no requests.
const SILENT: [&str; 5] = ["TestPlan", "LoopController", "Arguments", "ResultCollector", "HTTPArgument"];

/// Reads a plan. `properties` are those of JMeter's `-Jname=value`; `__P` and `__property` read them.
///
/// Lenient: excerpts without their end tags are accepted.
pub fn import(text: &str, properties: &BTreeMap<String, String>) -> Result<Imported, ImportError> {
    let mut imported = Imported::default();
    let groups = read(text, &mut imported.notes)?;
    let evaluate = |text: &str| evaluate(text, properties);
    for group in groups {
        if group.samplers.is_empty() {
            imported.notes.push(format!("{}: it has no HTTP sampler, left out", group.name));
            continue;
        }
        let plan = plan(&group, &evaluate, &mut imported.notes)?;
        imported.groups.push((group.name, plan));
    }
    if imported.groups.is_empty() {
        return Err(ImportError::NoGroup { notes: imported.notes });
    }
    Ok(imported)
}

/// Collects properties by name: JMeter's names show what they belong to, so excerpts without end tags can be read.
fn read(text: &str, notes: &mut Vec<String>) -> Result<Vec<ThreadGroup>, ImportError> {
    let mut reader = Reader::from_str(text);
    let config = reader.config_mut();
    (config.check_end_names, config.allow_unmatched_ends, config.trim_text_start, config.trim_text_end) =
        (false, true, true, true);
    let mut collected =
        Collected { groups: Vec::new(), property: None, header: None, argument: None, is_disabled: false, notes };
    loop {
        let place = reader.buffer_position();
        let event = reader.read_event().map_err(|source| ImportError::Syntax { byte: place, source })?;
        match event {
            Event::Start(tag) | Event::Empty(tag) => collected.begin(&tag),
            Event::Text(words) => {
                if let Some((_, value)) = &mut collected.property {
                    value.push_str(&words.xml10_content());
                }
            }
            Event::GeneralRef(reference) => {
                if let Some((_, value)) = &mut collected.property {
                    let name = reference.to_string();
                    match quick_xml::escape::unescape(&format!("&{name};")) {
                        Ok(character) => value.push_str(&character),
                        Err(error) => return Err(ImportError::Syntax { byte: place, source: error.into() }),
                    }
                }
            }
            Event::End(tag) if tag.name().as_ref().ends_with("Prop") => collected.end_property(),
            Event::End(_) => collected.property = None,
            Event::Eof => return Ok(collected.groups),
            _ => {}
        }
    }
}

/// The parts of a plan that have been read so far.
struct Collected<'a> {
    groups: Vec<ThreadGroup>,
    /// The open property: its name, and its value so far.
    property: Option<(String, String)>,
    /// Names whose values follow.
    header: Option<String>,
    argument: Option<String>,
    /// Whether the last element was disabled.
    is_disabled: bool,
    notes: &'a mut Vec<String>,
}

impl Collected<'_> {
    fn begin(&mut self, tag: &BytesStart<'_>) {
        let element = tag.name().as_ref().to_owned();
        if let Some((name, value)) = &mut self.property
            && !element.ends_with("Prop")
        {
            // A placeholder of a published plan, such as `<Change with Your IP>`.
            value.push_str(&format!("<{}>", &**tag));
            self.notes.push(format!("{name} must be filled in: {value}"));
            return;
        }
        let attribute = |wanted: &str| {
            let found = tag.try_get_attribute(wanted).ok().flatten()?;
            Some(found.normalized_value(XmlVersion::Implicit1_0).ok()?.into_owned())
        };
        if element.ends_with("Prop") {
            self.property = attribute("name").map(|name| (name, String::new()));
            return;
        }
        let Some(class) = attribute("testclass") else { return };
        let name = attribute("testname").unwrap_or_else(|| class.clone());
        self.is_disabled = attribute("enabled").as_deref() == Some("false");
        if self.is_disabled {
            self.notes.push(format!("{name}: disabled in the plan, left out"));
            return;
        }
        match class.as_str() {
            "ThreadGroup" => self.groups.push(ThreadGroup { name, ..ThreadGroup::default() }),
            "HTTPSamplerProxy" | "HTTPSampler" => match self.groups.last_mut() {
                Some(group) => group.samplers.push(JmxSampler { name, ..JmxSampler::default() }),
                None => self.notes.push(format!("{name}: a sampler outside of a thread group, left out")),
            },
            "HeaderManager" | "ConstantTimer" => {}
            "SetupThreadGroup" | "PostThreadGroup" => self.notes.push(format!("{name}: {class} is not run")),
            silent if SILENT.contains(&silent) => {}
            other => self.notes.push(format!("{name}: {other} has no counterpart, left out")),
        }
    }

    /// Assigns the property that ends to the element it belongs to.
    fn end_property(&mut self) {
        let Some((name, value)) = self.property.take() else { return };
        let Some(group) = self.groups.last_mut().filter(|_| !self.is_disabled) else { return };
        match name.as_str() {
            "Header.name" => self.header = Some(value),
            "Header.value" => group.headers.extend(self.header.take().map(|name| (name, value))),
            "ConstantTimer.delay" => group.think_ms = Some(value),
            "Argument.name" => self.argument = Some(value),
            "Argument.value" => {
                if let Some(sampler) = group.samplers.last_mut() {
                    sampler.arguments.push((self.argument.take().unwrap_or_default(), value));
                }
            }
            name if name.starts_with("HTTPSampler.") => {
                if let Some(sampler) = group.samplers.last_mut() {
                    sampler.properties.insert(name.to_owned(), value);
                }
            }
            _ => {
                group.properties.insert(name, value);
            }
        }
    }
}

fn plan(
    group: &ThreadGroup,
    evaluate: &dyn Fn(&str) -> String,
    notes: &mut Vec<String>,
) -> Result<LoadPlan, ImportError> {
    let property = |name: &str| group.properties.get(name).map(|text| evaluate(text)).filter(|text| !text.is_empty());
    let number = |name: &str| -> Result<Option<f64>, ImportError> {
        let Some(text) = property(name) else { return Ok(None) };
        let number = text.parse().map_err(|_| group.not_a_number(name, &text))?;
        Ok(Some(number))
    };
    let threads = number("ThreadGroup.num_threads")?.unwrap_or(1.0).max(1.0) as usize;
    let ramp_s = number("ThreadGroup.ramp_time")?.unwrap_or(0.0);
    let loops = number("LoopController.loops")?.unwrap_or(1.0);
    let forever = property("LoopController.continue_forever").as_deref() == Some("true") || loops < 0.0;
    let scheduler = property("ThreadGroup.scheduler").as_deref() == Some("true");
    let duration_s = number("ThreadGroup.duration")?.filter(|_| scheduler);
    let mut requests = Vec::new();
    for sampler in &group.samplers {
        requests.push(request(sampler, &group.headers, evaluate, notes));
    }
    let stop = StopCondition {
        duration_ms: duration_s.map(|seconds| (seconds * 1e3) as u64),
        count: (!forever).then(|| (loops as u64) * threads as u64 * requests.len() as u64),
    };
    if stop == StopCondition::default() {
        return Err(ImportError::Endless { group: group.name.clone() });
    }
    if let Some(delay) = property("ThreadGroup.delay").filter(|delay| delay != "0") {
        notes.push(format!("{}: the startup delay of {delay} s is left out", group.name));
    }
    match property("ThreadGroup.on_sample_error").as_deref() {
        None | Some("continue") => {}
        Some(other) => {
            notes.push(format!("{}: the error action \"{other}\" is not supported; clients continue", group.name))
        }
    }
    let think = match group.think_ms.as_deref().map(evaluate) {
        None => Think::None,
        Some(text) => Think::FixedMs(text.parse().map_err(|_| group.not_a_number("ConstantTimer.delay", &text))?),
    };
    let samplers = |name: &str| -> Vec<String> {
        group.samplers.iter().filter_map(|one| one.properties.get(name)).map(|text| evaluate(text)).collect()
    };
    let keep_alive = samplers("HTTPSampler.use_keepalive").iter().all(|value| value != "false");
    let timeout = |name: &str| samplers(name).iter().filter_map(|text| text.parse::<u64>().ok()).max();
    let timeouts = LoadTimeouts {
        connect_ms: timeout("HTTPSampler.connect_timeout").unwrap_or(LoadTimeouts::default().connect_ms),
        response_ms: timeout("HTTPSampler.response_timeout").unwrap_or(LoadTimeouts::default().response_ms),
    };
    Ok(LoadPlan {
        requests,
        selection: Selection::Sequence,
        pacing: Pacing::Closed { think, ramp_up_ms: (ramp_s * 1e3) as u64 },
        keep_alive,
        timeouts,
        ..LoadPlan::closed("", threads, stop)
    })
}

fn request(
    sampler: &JmxSampler,
    headers: &[(String, String)],
    evaluate: &dyn Fn(&str) -> String,
    notes: &mut Vec<String>,
) -> RequestTemplate {
    let property = |name: &str| sampler.properties.get(name).map(|text| evaluate(text)).filter(|text| !text.is_empty());
    let protocol = property("HTTPSampler.protocol").unwrap_or_else(|| "http".to_owned());
    let domain = property("HTTPSampler.domain").unwrap_or_else(|| "localhost".to_owned());
    let port = property("HTTPSampler.port").map_or(String::new(), |port| format!(":{port}"));
    let path = property("HTTPSampler.path").unwrap_or_else(|| "/".to_owned());
    let method = property("HTTPSampler.method").unwrap_or_else(|| "GET".to_owned());
    for (name, what) in [
        ("HTTPSampler.DO_MULTIPART_POST", "multipart bodies are not supported"),
        ("HTTPSampler.image_parser", "embedded resources are not fetched"),
        ("HTTPSampler.auto_redirects", "redirects are not followed"),
    ] {
        if property(name).as_deref() == Some("true") {
            notes.push(format!("{}: {name}: {what}", sampler.name));
        }
    }
    if property("HTTPSampler.follow_redirects").as_deref() == Some("true") {
        notes.push(format!("{}: HTTPSampler.follow_redirects: redirects are counted, not followed", sampler.name));
    }
    let arguments: Vec<(String, String)> =
        sampler.arguments.iter().map(|(name, value)| (evaluate(name), evaluate(value))).collect();
    let raw = property("HTTPSampler.postBodyRaw").as_deref() == Some("true");
    let encoded = |text| utf8_percent_encode(text, RESERVED);
    let pairs = arguments.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
    let pairs = pairs.collect::<Vec<_>>().join("&");
    let mut headers: Vec<(String, String)> =
        headers.iter().map(|(name, value)| (evaluate(name), evaluate(value))).collect();
    let (mut body, mut query) = (RequestBody::Empty, String::new());
    if raw {
        body = RequestBody::Text(arguments.iter().map(|(_, value)| value.as_str()).collect());
    } else if !pairs.is_empty() && method == "POST" {
        body = RequestBody::Text(pairs);
        headers.push(("Content-Type".to_owned(), "application/x-www-form-urlencoded".to_owned()));
    } else if !pairs.is_empty() {
        query = format!("{}{pairs}", if path.contains('?') { '&' } else { '?' });
    }
    RequestTemplate {
        name: Some(sampler.name.clone()),
        method,
        headers,
        body,
        ..RequestTemplate::get(format!("{protocol}://{domain}{port}{path}{query}"))
    }
}

/// Replaces `${__P(name,default)}` and `${__property(name,,default)}`; other functions are left as they are.
fn evaluate(text: &str, properties: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let Some(end) = rest[start..].find('}').map(|end| start + end) else { break };
        out.push_str(&rest[..start]);
        let inside = &rest[start + 2..end];
        let value = match inside.split_once('(').map(|(name, list)| (name, list.trim_end_matches(')'))) {
            Some(("__P", list)) => {
                let (name, default) = list.split_once(',').unwrap_or((list, "1"));
                Some(properties.get(name.trim()).map_or(default.trim(), String::as_str))
            }
            Some(("__property", list)) => {
                let fields: Vec<&str> = list.split(',').map(str::trim).collect();
                Some(properties.get(fields[0]).map_or(fields.get(2).copied().unwrap_or(fields[0]), String::as_str))
            }
            _ => None,
        };
        out.push_str(value.unwrap_or(&rest[start..=end]));
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = include_str!("../tests/fixtures/configurable.jmx");
    const EXCERPT: &str = include_str!("../tests/fixtures/published-excerpt.jmx");

    fn properties(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_published_plan_becomes_its_thread_group() {
        let imported = import(PLAN, &properties(&[("threads", "1000"), ("seconds", "600")])).unwrap();
        let (name, plan) = &imported.groups[0];
        assert_eq!((name.as_str(), plan.connections), ("Thread Group", 1000));
        assert_eq!(plan.stop, StopCondition::after_ms(600_000));
        assert_eq!(plan.pacing, Pacing::Closed { think: Think::None, ramp_up_ms: 5_000 });
        assert_eq!(plan.requests[0].url, "http://10.0.0.5:30080/apigateway/test");
        assert!(plan.keep_alive);
        assert!(imported.notes.iter().any(|note| note.contains("follow_redirects")), "{:?}", imported.notes);
    }

    #[test]
    fn properties_have_defaults() {
        let imported = import(PLAN, &BTreeMap::new()).unwrap();
        let plan = &imported.groups[0].1;
        assert_eq!((plan.connections, plan.stop), (10, StopCondition::after_ms(30_000)));
    }

    #[test]
    fn an_excerpt_without_end_tags_and_with_places_to_fill_in_is_read() {
        let imported = import(EXCERPT, &properties(&[("threads", "7")])).unwrap();
        assert_eq!(imported.groups[0].1.connections, 7);
        assert!(imported.notes.iter().any(|note| note.contains("HTTPSampler.domain must be filled in")));
    }

    #[test]
    fn element_without_a_counterpart_is_noted() {
        let more = PLAN.replace(
            "<ResultCollector",
            "<XPathAssertion testclass=\"XPathAssertion\" testname=\"Check\" enabled=\"true\"/><hashTree/><ResultCollector",
        );
        let imported = import(&more, &BTreeMap::new()).unwrap();
        assert!(imported.notes.iter().any(|note| note == "Check: XPathAssertion has no counterpart, left out"));
        let bad = import(PLAN, &properties(&[("threads", "many")])).unwrap_err().to_string();
        assert_eq!(bad, "Thread Group: ThreadGroup.num_threads: \"many\" is not a number");
        assert!(import("<jmeterTestPlan/>", &BTreeMap::new()).unwrap_err().to_string().contains("no thread group"));
    }
}
