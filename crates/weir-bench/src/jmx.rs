//! Converts JMeter test plans into load plans: thread groups with HTTP samplers, their data, assertions and extractors. What has
//! no counterpart is reported.

mod answers;
mod data;
mod reading;
mod texts;

use std::collections::BTreeMap;

use percent_encoding::utf8_percent_encode;

use self::data::{add_data, settle_references};
use self::reading::{JmxElement, JmxSampler, ThreadGroup, read};
use self::texts::{Texts, rewritten};
use crate::engine::{
    FormPart, LoadPlan, LoadTimeouts, Pacing, RequestBody, RequestTemplate, Selection, StopCondition, Think,
};
use crate::uri_characters::RESERVED;

/// The most redirects that JMeter follows by default.
const REDIRECTS: u32 = 20;

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

/// Reads a plan. `properties` are those of JMeter's `-Jname=value`; `__P` and `__property` read them.
///
/// Lenient: excerpts without their end tags are accepted.
pub fn import(text: &str, properties: &BTreeMap<String, String>) -> Result<Imported, ImportError> {
    let mut imported = Imported::default();
    let read = read(text, &mut imported.notes)?;
    let several = read.groups.len() > 1;
    for group in read.groups {
        if group.samplers.is_empty() {
            imported.notes.push(format!("{}: it has no HTTP sampler, left out", group.name));
            continue;
        }
        let elements: Vec<&JmxElement> = read.elements.iter().chain(&group.elements).collect();
        let mut texts = Texts::new(properties);
        for element in elements.iter().filter(|element| element.class == "Arguments") {
            for (name, value) in element.arguments() {
                let before = texts.variables().len();
                texts.define(&name, &value);
                if texts.variables().len() > before && !value.contains("__env(") {
                    let note = "a new value for each pass, where JMeter makes one for the whole run";
                    imported.notes.push(format!("{}: {name}: {note}", element.name));
                }
            }
        }
        for element in elements.iter().filter(|element| several && element.class == "CSVDataSet") {
            if matches!(element.text("shareMode"), "" | "shareMode.all") {
                let note = "each thread group reads the file from its first row, where JMeter's share it";
                imported.notes.push(format!("{}: {}: {note}", group.name, element.name));
            }
        }
        let mut plan = plan(&group, &elements, &texts, &mut imported.notes)?;
        add_data(&mut plan, &elements, &texts, &mut imported.notes);
        settle_references(&mut plan, &mut imported.notes);
        imported.groups.push((group.name, plan));
    }
    if imported.groups.is_empty() {
        return Err(ImportError::NoGroup { notes: imported.notes });
    }
    Ok(imported)
}

fn plan(
    group: &ThreadGroup,
    elements: &[&JmxElement],
    texts: &Texts<'_>,
    notes: &mut Vec<String>,
) -> Result<LoadPlan, ImportError> {
    let evaluate = |text: &str| texts.evaluate(text);
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
    let requests = requests(group, elements, &evaluate, notes);
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
    let think = think(group, &evaluate)?;
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

/// The pause that the timers of a group mean.
fn think(group: &ThreadGroup, evaluate: &dyn Fn(&str) -> String) -> Result<Think, ImportError> {
    let ms = |property: &str, text: &Option<String>| -> Result<Option<f64>, ImportError> {
        let Some(text) = text.as_deref().map(evaluate) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| group.not_a_number(property, &text))
    };
    let delay = ms("ConstantTimer.delay", &group.think_ms)?;
    Ok(match (delay, ms("RandomTimer.range", &group.think_range_ms)?) {
        (None, None) => Think::None,
        (Some(delay), None) => Think::FixedMs(delay),
        (delay, Some(range)) => {
            let from = delay.unwrap_or_default();
            Think::UniformMs { from, to: from + range }
        }
    })
}

/// The requests of a group, with the checks and extractions that apply to each.
fn requests(
    group: &ThreadGroup,
    elements: &[&JmxElement],
    evaluate: &dyn Fn(&str) -> String,
    notes: &mut Vec<String>,
) -> Vec<RequestTemplate> {
    let mut requests = Vec::new();
    for sampler in &group.samplers {
        let mut request = request(sampler, &group.headers, evaluate, notes);
        for element in elements.iter().copied().chain(&sampler.elements) {
            add_answers(&mut request, element, evaluate, notes);
        }
        requests.push(request);
    }
    requests
}

/// Adds the checks and extractions that an element means.
fn add_answers(
    request: &mut RequestTemplate,
    element: &JmxElement,
    evaluate: &dyn Fn(&str) -> String,
    notes: &mut Vec<String>,
) {
    let outcome = match element.class.as_str() {
        "ResponseAssertion" | "JSONPathAssertion" => {
            answers::checks(element, evaluate).map(|checks| request.check.extend(checks))
        }
        "JSONPostProcessor" | "RegexExtractor" => {
            answers::takes(element, evaluate).map(|takes| request.take.extend(takes))
        }
        _ => return,
    };
    let problems = match outcome {
        Err(problem) => vec![format!("left out: {problem}")],
        Ok(()) if matches!(element.class.as_str(), "JSONPostProcessor" | "RegexExtractor") => {
            answers::differences(element, evaluate)
        }
        Ok(()) => Vec::new(),
    };
    for problem in problems {
        let note = format!("{}: {}: {problem}", element.name, element.class);
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
}

/// The arguments and files of a sampler as parts of a form.
fn form_parts(
    sampler: &JmxSampler,
    arguments: &[(String, String)],
    evaluate: &dyn Fn(&str) -> String,
) -> Vec<FormPart> {
    let values = arguments.iter().map(|(name, value)| FormPart {
        name: name.clone(),
        value: Some(value.clone()),
        ..FormPart::default()
    });
    let files = sampler.files.iter().map(|file| FormPart {
        name: evaluate(&file.name),
        file: Some(evaluate(&file.path).into()),
        content_type: Some(evaluate(&file.content_type)).filter(|text| !text.is_empty()),
        value: None,
    });
    values.chain(files).collect()
}

/// A reference to a variable whose value is put in as it is.
fn raw_reference(inside: &str) -> String {
    format!("${{{inside}:raw}}")
}

/// The arguments as those of a query or a form; values of variables are encoded when a request is made.
fn pairs(arguments: &[(String, String)]) -> String {
    let reference = |inside: &str| format!("${{{inside}}}");
    let encoded = |text| rewritten(text, |text| utf8_percent_encode(text, RESERVED).to_string(), reference);
    let pairs = arguments.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// The body of a sampler and its type.
fn body(
    sampler: &JmxSampler,
    arguments: &[(String, String)],
    method: &str,
    evaluate: &dyn Fn(&str) -> String,
    notes: &mut Vec<String>,
) -> (RequestBody, Option<String>) {
    let is_true = |name: &str| sampler.properties.get(name).is_some_and(|text| evaluate(text) == "true");
    // JMeter sends a single file without a name as the body.
    if let ([file], "POST" | "PUT" | "PATCH") = (sampler.files.as_slice(), method)
        && evaluate(&file.name).is_empty()
    {
        if !arguments.is_empty() {
            notes.push(format!("{}: the file is the body, and the parameters are left out", sampler.name));
        }
        let content_type = Some(evaluate(&file.content_type)).filter(|text| !text.is_empty());
        return (RequestBody::File(evaluate(&file.path).into()), content_type);
    }
    if method == "POST" && (is_true("HTTPSampler.DO_MULTIPART_POST") || !sampler.files.is_empty()) {
        return (RequestBody::Multipart(form_parts(sampler, arguments, evaluate)), None);
    }
    if !sampler.files.is_empty() {
        notes.push(format!("{}: the files of a {method} have no counterpart, left out", sampler.name));
    }
    if is_true("HTTPSampler.postBodyRaw") {
        // JMeter puts values into such a body as they are.
        let plain = |value: &str| rewritten(value, str::to_owned, raw_reference);
        return (RequestBody::Text(arguments.iter().map(|(_, value)| plain(value)).collect()), None);
    }
    match pairs(arguments) {
        pairs if method == "POST" && !pairs.is_empty() => {
            (RequestBody::Text(pairs), Some("application/x-www-form-urlencoded".to_owned()))
        }
        _ => (RequestBody::Empty, None),
    }
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
    for (name, what) in [("HTTPSampler.image_parser", "embedded resources are not fetched")] {
        if property(name).as_deref() == Some("true") {
            notes.push(format!("{}: {name}: {what}", sampler.name));
        }
    }
    let follows = ["HTTPSampler.follow_redirects", "HTTPSampler.auto_redirects"]
        .iter()
        .any(|name| property(name).as_deref() == Some("true"));
    let arguments: Vec<(String, String)> =
        sampler.arguments.iter().map(|(name, value)| (evaluate(name), evaluate(value))).collect();
    // JMeter puts values into a path as they are.
    let path = rewritten(&path, str::to_owned, raw_reference);
    let mut headers: Vec<(String, String)> =
        headers.iter().map(|(name, value)| (evaluate(name), evaluate(value))).collect();
    let (body, content_type) = body(sampler, &arguments, &method, evaluate, notes);
    if let Some(content_type) = content_type {
        let is_given = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        if !is_given || matches!(body, RequestBody::Text(_)) {
            headers.push(("Content-Type".to_owned(), content_type));
        }
    }
    let query = match pairs(&arguments) {
        pairs if !matches!(body, RequestBody::Empty) || method == "POST" || pairs.is_empty() => String::new(),
        pairs => format!("{}{pairs}", if path.contains('?') { '&' } else { '?' }),
    };
    RequestTemplate {
        name: Some(sampler.name.clone()),
        method,
        headers,
        body,
        follow_redirects: if follows { REDIRECTS } else { 0 },
        ..RequestTemplate::get(format!("{protocol}://{domain}{port}{path}{query}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{AtEnd, CsvOrder, PlanVariable};

    const PLAN: &str = include_str!("../tests/fixtures/configurable.jmx");
    const FLOW: &str = include_str!("../tests/fixtures/flow.jmx");
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
        assert_eq!(plan.requests[0].follow_redirects, REDIRECTS);
        assert!(imported.notes.is_empty(), "{:?}", imported.notes);
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
    fn data_assertions_and_extractors_become_those_of_a_plan() {
        let imported = import(FLOW, &BTreeMap::new()).unwrap();
        let (_, plan) = &imported.groups[0];
        assert!(plan.cookies);
        let csv = &plan.data.csv[0];
        assert_eq!(
            (csv.names.as_slice(), csv.order, csv.at_end),
            (&["user".to_owned(), "pass".to_owned()][..], CsvOrder::Sequential, AtEnd::Stop)
        );
        let [log_in, cart] = plan.requests.as_slice() else { panic!("two samplers: {:?}", plan.requests) };
        assert_eq!(log_in.url, "http://shop.example:8080/login");
        assert_eq!(log_in.body, RequestBody::Text("user=${user}&id=${uuid_1}".to_owned()));
        assert_eq!(plan.data.variables["uuid_1"], PlanVariable::Uuid);
        assert_eq!(cart.url, "http://shop.example:8080/cart/${user:raw}?token=${token}&x=$${unknown}");
        // That of the group is of both, and each of the others of its sampler only.
        let labels = |request: &RequestTemplate| {
            request.check.iter().map(|check| format!("{check:?}")).collect::<Vec<_>>().join("\n")
        };
        assert!(labels(log_in).contains("2xx") && labels(cart).contains("2xx"));
        assert!(labels(cart).contains("/items/0/name") && !labels(log_in).contains("/items/0/name"));
        assert!(labels(cart).contains("total") && !labels(log_in).contains("total"));
        assert_eq!(log_in.take["token"].json.as_deref(), Some("/access_token"));
        assert_eq!(cart.take["csrf"].matches.as_deref(), Some("name=\"csrf\" value=\"(.+?)\""));
        assert_eq!(plan.pacing, Pacing::Closed { think: Think::UniformMs { from: 100.0, to: 150.0 }, ramp_up_ms: 0 });
        assert_eq!(
            imported.notes,
            [
                "Slow: DurationAssertion has no counterpart, left out",
                "Token: JSONPostProcessor: without a match the answer has failed and the client begins again, where JMeter goes on \
                 with what the variable was",
                "All items: JSONPathAssertion: left out: the path \"$.items[*]\" has no counterpart; only names and positions have, \
                 such as $.items[0].id",
                "Form: RegexExtractor: without a match the answer has failed and the client begins again, where JMeter goes on with \
                 what the variable was",
                "Users: users.csv is read from the working directory of the run",
                "Users: clients end after the last row, in place of sending <EOF>",
                "${unknown} has no value, and is sent as it is",
            ]
        );
    }

    #[test]
    fn multipart_sampler_becomes_a_form() {
        let files = "<elementProp name=\"HTTPsampler.Files\" elementType=\"HTTPFileArgs\"><collectionProp name=\"HTTPFileArgs.files\">\
                     <elementProp name=\"cat.png\" elementType=\"HTTPFileArg\"><stringProp name=\"File.path\">cat.png</stringProp>\
                     <stringProp name=\"File.paramname\">picture</stringProp><stringProp name=\"File.mimetype\">image/png</stringProp>\
                     </elementProp></collectionProp></elementProp>\
                     <boolProp name=\"HTTPSampler.DO_MULTIPART_POST\">true</boolProp>";
        let end = FLOW.find("</HTTPSamplerProxy>").expect("a sampler");
        let text = format!("{}{files}{}", &FLOW[..end], &FLOW[end..]);
        let imported = import(&text, &BTreeMap::new()).unwrap();
        let RequestBody::Multipart(parts) = &imported.groups[0].1.requests[0].body else { panic!("no form") };
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["user", "id", "picture"]);
        assert_eq!((parts[0].value.as_deref(), parts[2].content_type.as_deref()), (Some("${user}"), Some("image/png")));
    }

    /// An element with properties and what stands below it.
    fn element(class: &str, name: &str, properties: &[(&str, &str)], below: &str) -> String {
        let properties: String = properties
            .iter()
            .map(|(name, value)| format!(r#"<stringProp name="{name}">{value}</stringProp>"#))
            .collect();
        format!(r#"<E testclass="{class}" testname="{name}">{properties}</E><hashTree>{below}</hashTree>"#)
    }

    fn imported(content: &str) -> Imported {
        let plan = format!("<jmeterTestPlan><hashTree>{content}</hashTree></jmeterTestPlan>");
        import(&plan, &BTreeMap::new()).expect("a good plan")
    }

    const TWICE: [(&str, &str); 1] = [("LoopController.loops", "2")];

    #[test]
    fn bodies_are_those_of_jmeter() {
        let file = [("File.path", "a.bin"), ("File.paramname", ""), ("File.mimetype", "image/png")];
        let named = [("File.path", "a.bin"), ("File.paramname", "f"), ("File.mimetype", "")];
        let user = [("Argument.name", ""), ("Argument.value", r#"{"a": ${user}}"#)];
        let sampler = |name, method, more: &[(&str, &str)]| {
            element("HTTPSamplerProxy", name, &[&[("HTTPSampler.method", method)], more].concat(), "")
        };
        let raw = [&user[..], &[("HTTPSampler.postBodyRaw", "true")]].concat();
        let csv = element("CSVDataSet", "rows", &[("filename", "/rows.csv"), ("variableNames", "user")], "");
        let samplers = sampler("raw", "POST", &raw) + &sampler("one", "PUT", &file) + &sampler("files", "PUT", &named);
        let imported = imported(&element("ThreadGroup", "g", &TWICE, &(csv + &samplers)));
        let [raw, one, files] = imported.groups[0].1.requests.as_slice() else { panic!("three: {imported:?}") };
        assert_eq!(raw.body, RequestBody::Text(r#"{"a": ${user:raw}}"#.to_owned()));
        assert_eq!(one.body, RequestBody::File("a.bin".into()));
        assert_eq!(one.headers, [("Content-Type".to_owned(), "image/png".to_owned())]);
        assert!(files.body.is_empty());
        assert_eq!(imported.notes, ["files: the files of a PUT have no counterpart, left out"]);
    }

    #[test]
    fn assertion_of_a_status_keeps_the_rule_for_errors() {
        let assertion = |assume| {
            let properties = [
                ("1", "404"),
                ("Assertion.test_field", "Assertion.response_code"),
                ("Assertion.test_type", "8"),
                ("Assertion.assume_success", assume),
            ];
            let sampler = element("HTTPSamplerProxy", "a", &[], &element("ResponseAssertion", "r", &properties, ""));
            imported(&element("ThreadGroup", "g", &TWICE, &sampler)).groups[0].1.requests[0].check.len()
        };
        assert_eq!((assertion("false"), assertion("true")), (2, 1));
    }

    #[test]
    fn extractors_that_differ_are_noted() {
        let regex = |name, more: &[(&str, &str)]| {
            let usual = [("RegexExtractor.refname", name), ("RegexExtractor.regex", "a(.)")];
            element("RegexExtractor", name, &[&usual, more].concat(), "")
        };
        let extractors = regex("random", &[("RegexExtractor.match_number", "0"), ("RegexExtractor.default", "x")])
            + &regex("empty", &[("RegexExtractor.match_number", "1"), ("RegexExtractor.default_empty_value", "true")])
            + &regex("other", &[("Sample.scope", "variable"), ("Scope.variable", "v")])
            + &element(
                "RegexExtractor",
                "named",
                &[("RegexExtractor.refname", "n"), ("RegexExtractor.regex", "${v}")],
                "",
            );
        let sampler = element("HTTPSamplerProxy", "a", &[], &extractors);
        let imported = imported(&element("ThreadGroup", "g", &TWICE, &sampler));
        let takes = &imported.groups[0].1.requests[0].take;
        assert_eq!(takes.keys().collect::<Vec<_>>(), ["empty", "random"]);
        assert_eq!(takes["empty"].default.as_deref(), Some(""));
        let notes = imported.notes.join("\n");
        assert!(
            notes.contains("random: RegexExtractor: the first match is taken, where JMeter takes a random"),
            "{notes}"
        );
        assert!(
            notes.contains("other: RegexExtractor: left out: the scope \"variable\" has no counterpart"),
            "{notes}"
        );
        assert!(notes.contains("named: RegexExtractor: left out: a regular expression with a variable"), "{notes}");
        assert!(!notes.contains("empty: "), "{notes}");
    }

    #[test]
    fn data_that_differs_is_noted() {
        let sampler = element("HTTPSamplerProxy", "a", &[("HTTPSampler.path", "/${run}")], "");
        let group = |name| element("ThreadGroup", name, &TWICE, &sampler);
        let csv = [
            ("filename", "/rows.csv"),
            ("variableNames", "user"),
            ("quotedData", "false"),
            ("fileEncoding", "ISO-8859-1"),
            ("shareMode", "shareMode.all"),
        ];
        let run = [("Argument.name", "run"), ("Argument.value", "${__UUID()}")];
        let content = element("CSVDataSet", "rows", &csv, "") + &element("Arguments", "vars", &run, "");
        let notes = imported(&(content + &group("g") + &group("h"))).notes.join("\n");
        for note in [
            "vars: run: a new value for each pass, where JMeter makes one for the whole run",
            "g: rows: each thread group reads the file from its first row",
            "rows: quotes around values are those of CSV, where JMeter keeps them",
            "rows: the file must be UTF-8; convert it from ISO-8859-1",
        ] {
            assert!(notes.contains(note), "{note}: {notes}");
        }
    }

    #[test]
    fn variables_of_the_test_plan_itself_are_imported_and_those_of_elements_replace_them() {
        let argument = |name: &str, value: &str| {
            format!(
                r#"<elementProp name="{name}" elementType="Argument"><stringProp name="Argument.name">{name}</stringProp>
                <stringProp name="Argument.value">{value}</stringProp></elementProp>"#
            )
        };
        let own = argument("HOST", "a.example") + &argument("PATH", "/of/the/plan");
        let plan = format!(
            r#"<boolProp name="TestPlan.functional_mode">false</boolProp>
            <elementProp name="TestPlan.user_defined_variables" elementType="Arguments" testclass="Arguments">
            <collectionProp name="Arguments.arguments">{own}</collectionProp></elementProp>"#
        );
        let sampler = [("HTTPSampler.domain", "${HOST}"), ("HTTPSampler.path", "${PATH}")];
        let below = element("ThreadGroup", "g", &TWICE, &element("HTTPSamplerProxy", "a", &sampler, ""));
        let later =
            element("Arguments", "vars", &[("Argument.name", "PATH"), ("Argument.value", "/of/an/element")], "");
        let imported = |below: &str| {
            let text = format!(
                r#"<jmeterTestPlan><hashTree><TestPlan testclass="TestPlan" testname="p">{plan}</TestPlan><hashTree>{below}</hashTree></hashTree></jmeterTestPlan>"#
            );
            import(&text, &BTreeMap::new()).expect("a plan").groups.remove(0).1
        };
        assert_eq!(imported(&below).requests[0].url, "http://a.example/of/the/plan");
        assert_eq!(imported(&(later + &below)).requests[0].url, "http://a.example/of/an/element");
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
