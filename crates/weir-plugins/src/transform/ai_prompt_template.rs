use std::collections::HashSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop, Variable, Variables,
};

use crate::content::chat::{self, ChatBody, PromptMessage, PromptRole};
use crate::content::quoted;
use crate::transform::body_transformer::{BodyTemplate, Scene, SceneVariables};

/// Makes requests to a language model, in OpenAI's chat format, of a template that the request names and of its values.
///
/// A request has the name of a template and values, such as `{"template_name": "code", "language": "Rust"}`. `{{language}}` in a
/// template is replaced by the value, and by nothing if the request has none; the syntax is that of `body-transformer`. A value is put in
/// unchanged and cannot leave its message: unlike in APISIX, it is not escaped for HTML. The new body has the model and the messages of
/// the template, and nothing else of the request. A request without a known `template_name` is answered with 400. Bodies
/// of more than 16 KiB, and compressed ones, are read, and put into the template, on another thread.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AiPromptTemplate {
    /// The templates.
    #[schemars(length(min = 1))]
    templates: Vec<NamedTemplate>,
    /// The largest body of a request, in bytes, before and after. A larger request is refused with 413, and one that would become
    /// larger with 400.
    #[serde(default = "chat::default_max_req_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: u64,
}

/// A template and its name.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NamedTemplate {
    /// The name that requests give as `template_name`.
    #[schemars(length(min = 1))]
    name: String,
    /// What a request becomes.
    template: PromptTemplateOptions,
}

/// The members of a request to a language model.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PromptTemplateOptions {
    /// The model.
    #[schemars(length(min = 1))]
    model: Option<String>,
    /// The messages.
    #[schemars(length(min = 1))]
    messages: Option<Vec<PromptMessage>>,
}

impl Definition for AiPromptTemplate {
    const NAME: &'static str = "ai-prompt-template";
    const PRIORITY: i32 = 1071;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "ai-prompt-template: { templates: [{ name: code, template: { model: gpt-4o, \
        messages: [{ role: user, content: \"Write a program in {{language}}.\" }] } }] }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        for (index, named) in self.templates.iter().enumerate() {
            if self.templates[..index].iter().any(|before| before.name == named.name) {
                build.fault(format!("templates[{index}].name"), "is the name of a template before it");
            }
        }
        let compile = |(index, named): (usize, NamedTemplate)| {
            let template = named.template.compile(&format!("templates[{index}].template"))?;
            Ok((named.name.into(), template))
        };
        let templates = self.templates.into_iter().enumerate().map(compile).collect_all::<Box<[_]>>()?;
        let variables = templates.iter().flat_map(|(_, template)| template.variables()).collect::<HashSet<_>>();
        let variables = variables.into_iter().cloned().collect();
        Ok(Arc::new(PromptMaker {
            templates: Arc::new(PromptTemplates { templates, limit: self.max_req_body_size }),
            variables,
        }))
    }
}

impl PromptTemplateOptions {
    fn compile(self, place: &str) -> Result<PromptTemplate, ConfigError> {
        let parse = |text: &str, place: String| {
            BodyTemplate::parse(text).map_err(|error| ConfigError::new(place, format!("{error} (in the template)")))
        };
        let model = self.model.map(|model| parse(&model, format!("{place}.model"))).transpose();
        let message = |(index, message): (usize, PromptMessage)| {
            Ok((message.role, parse(&message.content, format!("{place}.messages[{index}].content"))?))
        };
        let messages = self.messages.map(|messages| messages.into_iter().enumerate().map(message).collect_all());
        let (model, messages) = (model, messages.transpose()).all_of()?;
        Ok(PromptTemplate { model, messages })
    }
}

struct PromptMaker {
    templates: Arc<PromptTemplates>,
    /// Those of all templates.
    variables: Box<[Variable]>,
}

/// The variables of an exchange, with their values.
type ReadVariables = [(Variable, Option<String>)];

struct PromptTemplates {
    templates: Box<[(Box<str>, PromptTemplate)]>,
    limit: u64,
}

struct PromptTemplate {
    model: Option<BodyTemplate>,
    messages: Option<Vec<(PromptRole, BodyTemplate)>>,
}

impl PromptTemplate {
    fn variables(&self) -> impl Iterator<Item = &Variable> {
        let contents = self.messages.iter().flatten().map(|(_, content)| content);
        self.model.iter().chain(contents).flat_map(|template| &template.variables)
    }

    /// The new body, of the members of a request.
    ///
    /// # Errors
    /// Why there is none.
    fn render(&self, variables: &ReadVariables, root: &Value, most: usize) -> Result<Vec<u8>, String> {
        let too_much = || format!("The template makes a body of more than {most} bytes");
        let mut sum = 0;
        let mut text = |template: &BodyTemplate| {
            let mut scene = Scene::new(root, &Value::Null, SceneVariables::Read(variables), most);
            scene.escapes_html = false;
            let made = template.render(&mut scene)?;
            sum += made.len();
            if sum > most { Err(too_much()) } else { Ok(made) }
        };
        let mut body = Map::new();
        if let Some(model) = &self.model {
            body.insert("model".to_owned(), text(model)?.into());
        }
        if let Some(messages) = &self.messages {
            let message = |(role, content): &(PromptRole, BodyTemplate)| {
                Ok::<_, String>(json!({ "role": role, "content": text(content)? }))
            };
            body.insert("messages".to_owned(), messages.iter().map(message).collect::<Result<Vec<_>, _>>()?.into());
        }
        let body = Value::Object(body).to_string();
        match body.len() > most {
            true => Err(too_much()),
            false => Ok(body.into_bytes()),
        }
    }
}

impl PromptTemplates {
    fn made(&self, variables: &ReadVariables, plain: &[u8]) -> Result<Vec<u8>, String> {
        let root = ChatBody::read(plain).and_then(|chat| chat.value()).map_err(|fault| fault.text().to_owned())?;
        let name = root.get("template_name").ok_or("The body has no `template_name`")?;
        let name = name.as_str().ok_or("The member `template_name` is not a text")?;
        let known = self.templates.iter().find(|(own, _)| name == &**own);
        let (_, template) = known.ok_or_else(|| format!("There is no template `{}`", quoted(name)))?;
        template.render(variables, &root, usize::try_from(self.limit).unwrap_or(usize::MAX))
    }
}

impl Plugin for PromptMaker {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::REQUEST_BODY)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        chat::need_body(exchange, AiPromptTemplate::NAME)
    }

    fn whole_request(&self, _: &mut Exchange) -> Result<Option<u64>, Stop> {
        Ok(Some(self.templates.limit))
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let value = |variable: &Variable| (variable.clone(), exchange.variable(variable).map(|value| text(&value)));
        let variables: Vec<_> = self.variables.iter().map(value).collect();
        let templates = Arc::clone(&self.templates);
        let make = move |plain: &[u8]| templates.made(&variables, plain);
        chat::read(exchange, self.templates.limit, body, make, |exchange, body, made| {
            chat::replace(exchange, AiPromptTemplate::NAME, body, made)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::elsewhere::MOST_AT_ONCE;
    use crate::testing::{body, build, exchange, finished, get, on_request, refused};

    fn made(options: &Value, content: &str) -> Result<Value, String> {
        let step = build::<AiPromptTemplate>(options.clone());
        let mut exchange = exchange("POST / HTTP/1.1\nHost: h\nContent-Length: 9");
        on_request(&step, &mut exchange).expect("it has a body");
        let mut content = content.as_bytes().to_vec();
        match finished(step.on_request_body(&mut exchange, &mut content)) {
            Ok(()) => Ok(serde_json::from_slice(&content).expect("JSON")),
            Err(_) => Err(body(&exchange).to_owned()),
        }
    }

    fn template(content: &str) -> Value {
        json!({"model": "m-{{size}}", "messages": [{"role": "system", "content": "hi"}, {"role": "user", "content": content}]})
    }

    #[test]
    fn values_are_put_into_the_template_that_a_request_names() {
        let options = json!({"templates": [
            {"name": "one", "template": template("a {{ b }} {{c.d}}.")},
            {"name": "two", "template": {"messages": [{"role": "assistant", "content": "2"}]}},
        ]});
        let content = json!({"template_name": "one", "size": 7, "b": "<\"\\\n}", "c": {"d": "e"}, "messages": [1]});
        let want = json!({"model": "m-7", "messages": [
            {"role": "system", "content": "hi"}, {"role": "user", "content": "a <\"\\\n} e."},
        ]});
        assert_eq!(made(&options, &content.to_string()), Ok(want));
        let missing = made(&options, r#"{"template_name": "one", "c": {}}"#).expect("made");
        assert_eq!((&missing["model"], &missing["messages"][1]["content"]), (&json!("m-"), &json!("a  .")));
        let two = made(&options, r#"{"template_name": "two", "stream": true}"#);
        assert_eq!(two, Ok(json!({"messages": [{"role": "assistant", "content": "2"}]})));
    }

    #[test]
    fn long_bodies_are_read_and_put_into_their_template_elsewhere() {
        let content = "{{_ctx.var.request_method}} {{a}}";
        let step = build::<AiPromptTemplate>(json!({"templates": [{"name": "one", "template": template(content)}]}));
        let long = "a".repeat(MOST_AT_ONCE);
        let (mut exchange, mut content) =
            (get("/"), json!({"template_name": "one", "a": long}).to_string().into_bytes());
        let turn = step.on_request_body(&mut exchange, &mut content);
        assert!(matches!(turn, Ok(Flow::Wait(_))));
        finished(turn).expect("there is such a template");
        let made: Value = serde_json::from_slice(&content).expect("JSON");
        assert_eq!(made["messages"][1]["content"], json!(format!("GET {long}")));
    }

    #[test]
    fn requests_without_a_known_template_are_refused() {
        let options =
            json!({"templates": [{"name": "one", "template": template("{{a}}{{a}}")}], "max_req_body_size": 120});
        for (content, want) in [
            ("", "The body is not an object in JSON"),
            ("{}", "The body has no `template_name`"),
            (r#"{"template_name": "three"}"#, "There is no template `three`"),
            (r#"{"template_name": ["one"]}"#, "The member `template_name` is not a text"),
            (r#"{"template_name": "one", "template_name": "two"}"#, "The body has the member `template_name` twice"),
            (r#"{"template_name": "one", "a": []}"#, "line 1 of the template: a table is no text"),
            (
                &format!("{{\"template_name\": \"one\", \"a\": \"{}\"}}", "a".repeat(70)),
                "the template makes more than 120 bytes",
            ),
            (
                &format!("{{\"template_name\": \"one\", \"a\": \"{}\"}}", "\\\\".repeat(30)),
                "The template makes a body of more than 120 bytes",
            ),
        ] {
            let told = made(&options, content).expect_err(content);
            let start = format!("{{\"message\":\"ai-prompt-template: {want}");
            assert!(told.starts_with(&start), "{content}: {told}");
        }
        let told = made(&options, &format!("{{\"template_name\": \"{}\"}}", "x".repeat(90))).expect_err("unknown");
        let want = format!("{{\"message\":\"ai-prompt-template: There is no template `{}`\"}}\n", "x".repeat(60));
        assert_eq!(told, want);
        let step = build::<AiPromptTemplate>(options);
        assert_eq!(on_request(&step, &mut get("/")), Err(Stop::Answered));
        assert_eq!(step.whole_request(&mut get("/")), Ok(Some(120)));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let named = |name: &str| json!({"name": name, "template": template("a")});
        for (options, want) in [
            (json!({}), "the option `templates` is missing"),
            (json!({"templates": []}), "templates: "),
            (
                json!({"templates": [named("a"), named("b"), named("a")]}),
                "templates[2].name: is the name of a template",
            ),
            (
                json!({"templates": [{"name": "a", "template": template("{{ ngx.now() }}")}]}),
                "templates[0].template.messages[1].content: line 1, column 4: `ngx`",
            ),
            (json!({"templates": [{"name": "a", "template": {"stream": true}}]}), "templates[0].template.stream: "),
        ] {
            let error = refused::<AiPromptTemplate>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
