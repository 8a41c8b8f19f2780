//! Reads the elements of a test plan.

use std::collections::BTreeMap;

use quick_xml::{
    Reader, XmlVersion,
    events::{BytesStart, Event},
};

use super::ImportError;

#[derive(Debug, Default)]
pub(super) struct ThreadGroup {
    pub(super) name: String,
    /// Properties by their JMeter names, such as `ThreadGroup.num_threads`.
    pub(super) properties: BTreeMap<String, String>,
    pub(super) samplers: Vec<JmxSampler>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) think_ms: Option<String>,
    /// What a random timer adds to it at most.
    pub(super) think_range_ms: Option<String>,
    /// Elements that apply to all samplers.
    pub(super) elements: Vec<JmxElement>,
    depth: usize,
}

impl ThreadGroup {
    pub(super) fn not_a_number(&self, property: &str, text: &str) -> ImportError {
        let (group, property, text) = (self.name.clone(), property.to_owned(), text.to_owned());
        ImportError::NotANumber { group, property, text }
    }
}

#[derive(Debug, Default)]
pub(super) struct JmxSampler {
    pub(super) name: String,
    pub(super) properties: BTreeMap<String, String>,
    pub(super) arguments: Vec<(String, String)>,
    pub(super) files: Vec<JmxFile>,
    /// Elements below it, which apply to it only.
    pub(super) elements: Vec<JmxElement>,
    depth: usize,
}

impl JmxSampler {
    /// Adds a property of a file; the first one begins a file.
    fn add_file(&mut self, property: &str, value: String) {
        if property == "File.path" {
            self.files.push(JmxFile { path: value, ..JmxFile::default() });
            return;
        }
        let Some(file) = self.files.last_mut() else { return };
        match property {
            "File.paramname" => file.name = value,
            _ => file.content_type = value,
        }
    }
}

/// A file that a sampler sends.
#[derive(Debug, Default)]
pub(super) struct JmxFile {
    pub(super) path: String,
    /// The name of its field.
    pub(super) name: String,
    pub(super) content_type: String,
}

/// An element beside samplers: data, an assertion, an extractor.
#[derive(Clone, Debug)]
pub(super) struct JmxElement {
    pub(super) class: String,
    pub(super) name: String,
    /// In their order; the items of a list have numbers as their names.
    properties: Vec<(String, String)>,
}

impl JmxElement {
    /// The value of a property; empty if it has none.
    pub(super) fn text(&self, name: &str) -> &str {
        self.properties.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.text(name) == "true"
    }

    /// The items of its list.
    pub(super) fn items(&self) -> impl Iterator<Item = &str> {
        let numbered = self.properties.iter().filter(|(name, _)| name.parse::<i64>().is_ok());
        numbered.map(|(_, value)| value.as_str())
    }

    /// The pairs of names and values of its arguments.
    pub(super) fn arguments(&self) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        for (name, value) in &self.properties {
            match (name.as_str(), pairs.last_mut()) {
                ("Argument.name", _) => pairs.push((value.clone(), String::new())),
                ("Argument.value", Some((_, text))) => text.clone_from(value),
                _ => {}
            }
        }
        pairs
    }
}

/// What a test plan contains.
#[derive(Debug, Default)]
pub(super) struct JmxPlan {
    pub(super) groups: Vec<ThreadGroup>,
    /// Elements that apply to all groups.
    pub(super) elements: Vec<JmxElement>,
}

/// Elements that structure a plan, but send no requests.
const SILENT: [&str; 7] = [
    "TestPlan",
    "LoopController",
    "ResultCollector",
    "HTTPArgument",
    "HeaderManager",
    "ConstantTimer",
    "UniformRandomTimer",
];

/// Elements with a counterpart, whose properties are kept.
const KEPT: [&str; 8] = [
    "Arguments",
    "CSVDataSet",
    "CookieManager",
    "CounterConfig",
    "ResponseAssertion",
    "JSONPathAssertion",
    "JSONPostProcessor",
    "RegexExtractor",
];

/// Collects properties by name: JMeter's names show what they belong to, so excerpts without end tags can be read.
pub(super) fn read(text: &str, notes: &mut Vec<String>) -> Result<JmxPlan, ImportError> {
    let mut reader = Reader::from_str(text);
    let config = reader.config_mut();
    (config.check_end_names, config.allow_unmatched_ends, config.trim_text_start, config.trim_text_end) =
        (false, true, true, true);
    let mut collected = Collected {
        plan: JmxPlan::default(),
        place: ElementPlace::Structure,
        depth: 0,
        property: None,
        header: None,
        argument: None,
        is_disabled: false,
        notes,
    };
    loop {
        let place = reader.buffer_position();
        let event = reader.read_event().map_err(|source| ImportError::Syntax { byte: place, source })?;
        match event {
            Event::Start(tag) if tag.name().as_ref() == "hashTree" => collected.depth += 1,
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
            Event::End(tag) => {
                collected.property = None;
                if tag.name().as_ref() == "hashTree" {
                    collected.depth = collected.depth.saturating_sub(1);
                }
            }
            Event::Eof => return Ok(collected.plan),
            _ => {}
        }
    }
}

/// The parts of a plan that have been read so far.
struct Collected<'a> {
    plan: JmxPlan,
    /// Where properties that come now belong.
    place: ElementPlace,
    /// The number of open trees: what is deeper than a sampler belongs to it.
    depth: usize,
    /// The open property: its name, and its value so far.
    property: Option<(String, String)>,
    /// Names whose values follow.
    header: Option<String>,
    argument: Option<String>,
    /// Whether the last element was disabled.
    is_disabled: bool,
    notes: &'a mut Vec<String>,
}

/// An element by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElementPlace {
    /// A group, a sampler, or an element whose properties are known by their names.
    Structure,
    OfPlan,
    OfGroup,
    OfSampler,
}

impl Collected<'_> {
    /// Where an element of the present depth belongs.
    fn place(&self) -> ElementPlace {
        match self.plan.groups.last() {
            Some(group) if self.depth > group.depth => match group.samplers.last() {
                Some(sampler) if self.depth > sampler.depth => ElementPlace::OfSampler,
                _ => ElementPlace::OfGroup,
            },
            _ => ElementPlace::OfPlan,
        }
    }

    /// The elements of a place.
    fn elements(&mut self, place: ElementPlace) -> &mut Vec<JmxElement> {
        let group = self.plan.groups.last_mut();
        match (place, group) {
            (ElementPlace::OfSampler, Some(group)) if !group.samplers.is_empty() => {
                &mut group.samplers.last_mut().expect("there is one").elements
            }
            (ElementPlace::OfGroup | ElementPlace::OfSampler, Some(group)) => &mut group.elements,
            _ => &mut self.plan.elements,
        }
    }

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
        let depth = self.depth;
        self.place = ElementPlace::Structure;
        match class.as_str() {
            "ThreadGroup" => self.plan.groups.push(ThreadGroup { name, depth, ..ThreadGroup::default() }),
            "HTTPSamplerProxy" | "HTTPSampler" => match self.plan.groups.last_mut() {
                Some(group) => group.samplers.push(JmxSampler { name, depth, ..JmxSampler::default() }),
                None => self.notes.push(format!("{name}: a sampler outside of a thread group, left out")),
            },
            kept if KEPT.contains(&kept) => {
                self.place = self.place();
                let place = self.place;
                self.elements(place).push(JmxElement { class, name, properties: Vec::new() });
            }
            "SetupThreadGroup" | "PostThreadGroup" => self.notes.push(format!("{name}: {class} is not run")),
            silent if SILENT.contains(&silent) => {}
            other => self.notes.push(format!("{name}: {other} has no counterpart, left out")),
        }
    }

    /// Assigns the property that ends to the element it belongs to.
    fn end_property(&mut self) {
        let Some((name, value)) = self.property.take() else { return };
        if self.is_disabled {
            return;
        }
        if self.place != ElementPlace::Structure {
            let place = self.place;
            if let Some(element) = self.elements(place).last_mut() {
                element.properties.push((name, value));
            }
            return;
        }
        let Some(group) = self.plan.groups.last_mut() else { return };
        match name.as_str() {
            "Header.name" => self.header = Some(value),
            "Header.value" => group.headers.extend(self.header.take().map(|name| (name, value))),
            "ConstantTimer.delay" => group.think_ms = Some(value),
            "RandomTimer.range" => group.think_range_ms = Some(value),
            "Argument.name" => self.argument = Some(value),
            "Argument.value" => {
                if let Some(sampler) = group.samplers.last_mut() {
                    sampler.arguments.push((self.argument.take().unwrap_or_default(), value));
                }
            }
            "File.path" | "File.paramname" | "File.mimetype" => {
                if let Some(sampler) = group.samplers.last_mut() {
                    sampler.add_file(&name, value);
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
