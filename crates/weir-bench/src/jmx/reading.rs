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
const SILENT: [&str; 2] = ["ResultCollector", "HTTPArgument"];

/// Elements whose properties are those of their group.
const OF_GROUP: [&str; 3] = ["HeaderManager", "ConstantTimer", "UniformRandomTimer"];

/// Controllers whose samplers are sent once in their order, as those of the group.
const TRANSPARENT: [&str; 3] = ["TransactionController", "GenericController", "RecordingController"];

/// Elements with values for requests, which those below a sampler are not.
const DATA: [&str; 4] = ["Arguments", "CSVDataSet", "CookieManager", "CounterConfig"];

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
        parents: Vec::new(),
        last: ElementKind::Plan,
        property: None,
        header: None,
        argument: None,
        is_left_out: false,
        notes,
    };
    loop {
        let place = reader.buffer_position();
        let event = reader.read_event().map_err(|source| ImportError::Syntax { byte: place, source })?;
        match event {
            Event::Start(tag) if tag.name().as_ref() == "hashTree" => collected.parents.push(collected.last),
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
                    collected.last = collected.parents.pop().unwrap_or(ElementKind::Plan);
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
    /// The elements whose trees are open.
    parents: Vec<ElementKind>,
    /// The last element, to which a tree that opens belongs.
    last: ElementKind,
    /// The open property: its name, and its value so far.
    property: Option<(String, String)>,
    /// Names whose values follow.
    header: Option<String>,
    argument: Option<String>,
    /// Whether the properties of the last element are left out.
    is_left_out: bool,
    notes: &'a mut Vec<String>,
}

/// An element by what its tree means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElementKind {
    /// The plan, or an element without samplers below it.
    Plan,
    Group,
    Controller,
    Sampler,
    LeftOut,
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
    /// Where an element that comes now belongs.
    fn place(&self) -> ElementPlace {
        let known = self.parents.iter().rev().find(|parent| **parent != ElementKind::Plan);
        match known {
            Some(ElementKind::Sampler) => ElementPlace::OfSampler,
            Some(ElementKind::Group | ElementKind::Controller) => ElementPlace::OfGroup,
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
        (self.is_left_out, self.place) = (false, ElementPlace::Structure);
        if self.parents.contains(&ElementKind::LeftOut) {
            return self.leave_out(None);
        }
        if attribute("enabled").as_deref() == Some("false") {
            return self.leave_out(Some(format!("{name}: disabled in the plan, left out")));
        }
        self.last = ElementKind::Plan;
        match class.as_str() {
            "ThreadGroup" => {
                self.last = ElementKind::Group;
                self.plan.groups.push(ThreadGroup { name, ..ThreadGroup::default() });
            }
            "HTTPSamplerProxy" | "HTTPSampler" => match self.plan.groups.last_mut() {
                Some(group) => {
                    self.last = ElementKind::Sampler;
                    group.samplers.push(JmxSampler { name, ..JmxSampler::default() });
                }
                None => self.leave_out(Some(format!("{name}: a sampler outside of a thread group, left out"))),
            },
            kept if KEPT.contains(&kept) => self.keep(class, name),
            shared if OF_GROUP.contains(&shared) => self.begin_of_group(&class, &name),
            "SetupThreadGroup" | "PostThreadGroup" => self.leave_out(Some(format!("{name}: {class} is not run"))),
            // Its user-defined variables are those of an element `Arguments` before all others.
            "TestPlan" => self.keep("Arguments".to_owned(), name),
            silent if SILENT.contains(&silent) => {}
            controller if TRANSPARENT.contains(&controller) => {
                (self.last, self.is_left_out) = (ElementKind::Controller, true);
                self.notes
                    .push(format!("{name}: {class} has no counterpart; its samplers are among those of the group"));
            }
            other => self.leave_out(Some(format!("{name}: {other} has no counterpart, left out"))),
        }
    }

    /// Leaves out an element with its properties and all below it.
    fn leave_out(&mut self, note: Option<String>) {
        (self.last, self.is_left_out) = (ElementKind::LeftOut, true);
        self.notes.extend(note);
    }

    /// Begins an element whose properties are kept.
    fn keep(&mut self, class: String, name: String) {
        if self.parents.last() == Some(&ElementKind::Controller) {
            return self.leave_out(Some(format!("{name}: {class} of a controller's samplers only, left out")));
        }
        self.place = self.place();
        if self.place == ElementPlace::OfSampler && DATA.contains(&class.as_str()) {
            return self.leave_out(Some(format!("{name}: {class} of one sampler only, left out")));
        }
        let place = self.place;
        self.elements(place).push(JmxElement { class, name, properties: Vec::new() });
    }

    /// Begins an element that is one of its group here, wherever it stands.
    fn begin_of_group(&mut self, class: &str, name: &str) {
        if matches!(self.parents.last(), Some(ElementKind::Sampler | ElementKind::Controller)) {
            self.notes.push(format!("{name}: {class} of some samplers only; it applies to all of the group"));
        }
        let Some(group) = self.plan.groups.last_mut() else {
            return self.leave_out(Some(format!("{name}: {class} outside of a thread group, left out")));
        };
        if class == "HeaderManager" {
            return;
        }
        if group.think_ms.take().is_some() | group.think_range_ms.take().is_some() {
            self.notes.push(format!("{name}: the group has several timers; only this one, the last, applies"));
        }
    }

    /// Assigns the property that ends to the element it belongs to.
    fn end_property(&mut self) {
        let Some((name, value)) = self.property.take() else { return };
        if self.is_left_out {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn element(class: &str, name: &str, more: &str, below: &str) -> String {
        format!(r#"<{class} testclass="{class}" testname="{name}"{more}/><hashTree>{below}</hashTree>"#)
    }

    fn read_plan(content: &str) -> (JmxPlan, Vec<String>) {
        let mut notes = Vec::new();
        let plan =
            format!("<jmeterTestPlan><hashTree>{}</hashTree></jmeterTestPlan>", element("TestPlan", "p", "", content));
        (read(&plan, &mut notes).expect("well-formed"), notes)
    }

    #[test]
    fn elements_belong_to_what_they_stand_below() {
        let assertion = |name: &str| element("ResponseAssertion", name, "", "");
        let sampler =
            |name: &str, more: &str| element("HTTPSamplerProxy", name, more, &assertion(&format!("of {name}")));
        let content = [
            sampler("a", ""),
            sampler("off", " enabled=\"false\""),
            element("JDBCSampler", "sql", "", &assertion("of sql")),
            element("TransactionController", "t", "", &(assertion("of t") + &sampler("b", ""))),
            element("LoopController", "loop", "", &sampler("c", "")),
            assertion("of g"),
        ];
        let other = element("ThreadGroup", "off", " enabled=\"false\"", &sampler("d", ""));
        let (plan, notes) = read_plan(&(element("ThreadGroup", "g", "", &content.concat()) + &other));
        let names = |elements: &[JmxElement]| elements.iter().map(|element| element.name.clone()).collect::<Vec<_>>();
        let [group] = plan.groups.as_slice() else { panic!("one group: {:?}", plan.groups) };
        let samplers: Vec<_> =
            group.samplers.iter().map(|sampler| (sampler.name.as_str(), names(&sampler.elements))).collect();
        assert_eq!(samplers, [("a", vec!["of a".to_owned()]), ("b", vec!["of b".to_owned()])]);
        assert_eq!((names(&group.elements), names(&plan.elements)), (vec!["of g".to_owned()], vec!["p".to_owned()]));
        assert_eq!(
            notes,
            [
                "off: disabled in the plan, left out",
                "sql: JDBCSampler has no counterpart, left out",
                "t: TransactionController has no counterpart; its samplers are among those of the group",
                "of t: ResponseAssertion of a controller's samplers only, left out",
                "loop: LoopController has no counterpart, left out",
                "off: disabled in the plan, left out",
            ]
        );
    }

    #[test]
    fn elements_that_apply_to_less_or_more_here_are_noted() {
        let timer = |name: &str, property: &str| {
            let property = format!(r#"<stringProp name="{property}">7</stringProp>"#);
            format!(r#"<T testclass="UniformRandomTimer" testname="{name}">{property}</T><hashTree/>"#)
        };
        let below = element("CSVDataSet", "rows", "", "") + &element("HeaderManager", "fields", "", "");
        let content = timer("first", "RandomTimer.range")
            + &timer("second", "ConstantTimer.delay")
            + &element("HTTPSamplerProxy", "a", "", &below);
        let (plan, notes) = read_plan(&element("ThreadGroup", "g", "", &content));
        let group = &plan.groups[0];
        assert_eq!((group.think_ms.as_deref(), group.think_range_ms.as_deref()), (Some("7"), None));
        assert_eq!(
            notes,
            [
                "second: the group has several timers; only this one, the last, applies",
                "rows: CSVDataSet of one sampler only, left out",
                "fields: HeaderManager of some samplers only; it applies to all of the group",
            ]
        );
    }
}
