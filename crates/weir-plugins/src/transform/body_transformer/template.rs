//! Templates in the syntax of lua-resty-template, of whose Lua they have the part that [`super::expression`] reads.

use std::borrow::Cow;

use serde_json::Value;
use weir_plugin::Variable;

use super::expression::{CodeReader, Function, LuaExpression, MOST_NESTED, Scene, is_true, text};
use super::fault::TemplateError;

/// A template that has been read.
#[derive(Debug)]
pub struct BodyTemplate {
    parts: Vec<TemplateSection>,
    /// It has the body as text.
    pub uses_body: bool,
    /// The variables of the exchange that it has.
    pub variables: Vec<Variable>,
}

#[derive(Debug)]
enum TemplateSection {
    Text(Box<str>),
    Output { line: usize, value: LuaExpression, is_escaped: bool },
    Local { line: usize, value: LuaExpression },
    If { branches: Vec<Branch>, otherwise: Vec<TemplateSection> },
    For { line: usize, list: LuaExpression, of: Members, body: Vec<TemplateSection> },
}

#[derive(Debug)]
struct Branch {
    line: usize,
    condition: LuaExpression,
    body: Vec<TemplateSection>,
}

/// What a `for` goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Members {
    /// `ipairs`: the items of a list, up to the first that is `nil`.
    Items,
    /// `pairs`: all members, in their order.
    All,
}

/// A block that has no end yet.
enum Open {
    Branch { before: Vec<Branch>, line: usize, condition: LuaExpression },
    Else { branches: Vec<Branch> },
    For { line: usize, list: LuaExpression, of: Members },
}

/// A block, the parts before it, and the number of local variables outside of it.
struct UnfinishedBlock {
    open: Open,
    outside: Vec<TemplateSection>,
    locals: usize,
}

struct TemplateReader<'t> {
    code: CodeReader<'t>,
    parts: Vec<TemplateSection>,
    blocks: Vec<UnfinishedBlock>,
}

/// The tags, with their ends.
const TAGS: [(&str, &str); 7] =
    [("{{", "}}"), ("{*", "*}"), ("{%", "%}"), ("{#", "#}"), ("{(", ")}"), ("{[", "]}"), ("{-", "-}")];

impl BodyTemplate {
    /// # Errors
    /// What is not supported, with its place in the template.
    pub fn parse(text: &str) -> Result<BodyTemplate, TemplateError> {
        let mut reader = TemplateReader { code: CodeReader::new(text), parts: Vec::new(), blocks: Vec::new() };
        let (mut from, mut copied) = (0, 0);
        while let Some((start, tag, end)) = next_tag(text, from) {
            let inside = start + tag.len()..end;
            from = end + tag.len();
            if text[..start].ends_with('\\') {
                reader.text(&text[copied..start - 1]);
                copied = start;
                continue;
            }
            // A line with nothing but code leaves no line.
            let before = match tag {
                "{%" => text[copied..start].trim_end_matches([' ', '\t']),
                _ => &text[copied..start],
            };
            reader.text(before);
            if tag == "{%" && text[from..].starts_with('\n') {
                from += 1;
            }
            copied = from;
            (reader.code.at, reader.code.end) = (inside.start, inside.end);
            reader.tag(tag, start)?;
        }
        reader.text(&text[copied..]);
        (reader.code.at, reader.code.end) = (text.len(), text.len());
        match reader.blocks.is_empty() {
            true => Ok(BodyTemplate {
                parts: reader.parts,
                uses_body: text.contains("_body"),
                variables: reader.code.variables,
            }),
            false => reader.code.fault("a block has no `{% end %}`"),
        }
    }

    /// The text that the template makes.
    ///
    /// # Errors
    /// What cannot be made of this body, with its line in the template.
    pub fn render(&self, scene: &mut Scene<'_>) -> Result<String, String> {
        let mut out = String::new();
        render(&self.parts, scene, &mut out)?;
        Ok(out)
    }
}

/// The next tag that has an end: where it begins, how, and where its content ends.
fn next_tag(text: &str, mut from: usize) -> Option<(usize, &'static str, usize)> {
    loop {
        let start = from + text[from..].find('{')?;
        let found = TAGS.iter().find(|(tag, _)| text[start..].starts_with(tag));
        let end = found.and_then(|(tag, end)| Some((*tag, start + 2 + text[start + 2..].find(end)?)));
        match end {
            Some((tag, end)) => return Some((start, tag, end)),
            None => from = start + 1,
        }
    }
}

impl TemplateReader<'_> {
    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.parts.push(TemplateSection::Text(text.into()));
        }
    }

    fn line(&self) -> usize {
        self.code.text[..self.code.at].matches('\n').count() + 1
    }

    fn tag(&mut self, tag: &str, start: usize) -> Result<(), TemplateError> {
        match tag {
            "{#" => Ok(()),
            "{%" => {
                while !self.code.is_at_end() {
                    self.statement()?;
                    self.code.take(";");
                }
                Ok(())
            }
            "{{" | "{*" => {
                let line = self.line();
                let value = self.code.expression(0)?;
                if !self.code.is_at_end() {
                    return self.code.fault("is no part of an expression");
                }
                // A text that is escaped for XML is safe in HTML; escaped twice, it would be another text.
                let is_escaped = tag == "{{" && !matches!(value, LuaExpression::Call(Function::EscapeXml, _));
                self.parts.push(TemplateSection::Output { line, value, is_escaped });
                Ok(())
            }
            _ => {
                self.code.at = start;
                self.code.fault(format!("`{tag}` is not supported: templates include no files and blocks"))
            }
        }
    }

    fn statement(&mut self) -> Result<(), TemplateError> {
        let line = self.line();
        if self.code.take("if") {
            let condition = self.condition()?;
            self.open(Open::Branch { before: Vec::new(), line, condition })
        } else if self.code.take("elseif") {
            let branches = self.finish_branch("elseif")?;
            let condition = self.condition()?;
            self.open(Open::Branch { before: branches, line, condition })
        } else if self.code.take("else") {
            let branches = self.finish_branch("else")?;
            self.open(Open::Else { branches })
        } else if self.code.take("end") {
            self.finish()
        } else if self.code.take("for") {
            self.begin_for(line)
        } else if self.code.take("local") {
            let name = self.code.name()?;
            self.code.expect("=")?;
            let value = self.code.expression(0)?;
            self.code.locals.push(name);
            self.parts.push(TemplateSection::Local { line, value });
            Ok(())
        } else {
            self.code.fault("of Lua's statements, `if`, `for ... in ipairs(...)`, `for ... in pairs(...)` and `local` are supported")
        }
    }

    fn condition(&mut self) -> Result<LuaExpression, TemplateError> {
        let condition = self.code.expression(0)?;
        self.code.expect("then")?;
        Ok(condition)
    }

    fn begin_for(&mut self, line: usize) -> Result<(), TemplateError> {
        let key = self.code.name()?;
        self.code.expect(",")?;
        let item = self.code.name()?;
        self.code.expect("in")?;
        let of = if self.code.take("ipairs") {
            Members::Items
        } else if self.code.take("pairs") {
            Members::All
        } else {
            return self.code.fault("expected `ipairs(...)` or `pairs(...)`");
        };
        self.code.expect("(")?;
        let list = self.code.expression(0)?;
        self.code.expect(")")?;
        self.code.expect("do")?;
        self.open(Open::For { line, list, of })?;
        self.code.locals.extend([key, item]);
        Ok(())
    }

    fn open(&mut self, open: Open) -> Result<(), TemplateError> {
        if self.blocks.len() == MOST_NESTED {
            return self.code.fault(format!("is nested deeper than {MOST_NESTED} blocks"));
        }
        let outside = std::mem::take(&mut self.parts);
        self.blocks.push(UnfinishedBlock { open, outside, locals: self.code.locals.len() });
        Ok(())
    }

    /// Closes the innermost block: what it was, and its parts.
    fn close(&mut self) -> Option<(Open, Vec<TemplateSection>)> {
        let UnfinishedBlock { open, outside, locals } = self.blocks.pop()?;
        self.code.locals.truncate(locals);
        Some((open, std::mem::replace(&mut self.parts, outside)))
    }

    /// The branches before an `elseif` or `else`.
    fn finish_branch(&mut self, word: &str) -> Result<Vec<Branch>, TemplateError> {
        match self.close() {
            Some((Open::Branch { mut before, line, condition }, body)) => {
                before.push(Branch { line, condition, body });
                Ok(before)
            }
            _ => self.code.fault(format!("`{word}` has no `if`")),
        }
    }

    fn finish(&mut self) -> Result<(), TemplateError> {
        let part = match self.close() {
            Some((Open::Branch { mut before, line, condition }, body)) => {
                before.push(Branch { line, condition, body });
                TemplateSection::If { branches: before, otherwise: Vec::new() }
            }
            Some((Open::Else { branches }, otherwise)) => TemplateSection::If { branches, otherwise },
            Some((Open::For { line, list, of }, body)) => TemplateSection::For { line, list, of, body },
            None => return self.code.fault("`end` has no block"),
        };
        self.parts.push(part);
        Ok(())
    }
}

fn render<'a>(parts: &[TemplateSection], scene: &mut Scene<'a>, out: &mut String) -> Result<(), String> {
    let outside = scene.locals.len();
    for part in parts {
        match part {
            TemplateSection::Text(text) => push(text, scene, out)?,
            TemplateSection::Output { line, value, is_escaped } => {
                let value = value.value(scene).map_err(|problem| at(*line, &problem))?;
                if value.is_null() {
                    continue;
                }
                let shown = text(&value).map_err(|problem| at(*line, &problem))?;
                match *is_escaped && scene.escapes_html && value.is_string() {
                    true => push_escaped(&shown, scene, out)?,
                    false => push(&shown, scene, out)?,
                }
            }
            TemplateSection::Local { line, value } => {
                let value = value.value(scene).map_err(|problem| at(*line, &problem))?;
                scene.locals.push(value);
            }
            TemplateSection::If { branches, otherwise } => {
                let mut chosen = otherwise;
                for Branch { line, condition, body } in branches {
                    if is_true(&*condition.value(scene).map_err(|problem| at(*line, &problem))?) {
                        chosen = body;
                        break;
                    }
                }
                render(chosen, scene, out)?;
            }
            TemplateSection::For { line, list, of, body } => {
                let list = list.value(scene).map_err(|problem| at(*line, &problem))?;
                let Cow::Borrowed(list) = list else { return Err(at(*line, "`for` needs a list or an object")) };
                render_each(list, *of, body, scene, out).map_err(|problem| match problem {
                    Some(problem) => problem,
                    None => at(*line, "`for` needs a list or an object"),
                })?;
            }
        }
    }
    scene.locals.truncate(outside);
    Ok(())
}

/// # Errors
/// What went wrong in the body of the loop; `None` if there is nothing to go through.
fn render_each<'a>(
    list: &'a Value,
    of: Members,
    body: &[TemplateSection],
    scene: &mut Scene<'a>,
    out: &mut String,
) -> Result<(), Option<String>> {
    let mut each = |key: &dyn Fn() -> Value, item: &'a Value| {
        // One that is left out is a step, too: it is looked at.
        scene.spend(0)?;
        if item.is_null() {
            return Ok(());
        }
        let outside = scene.locals.len();
        scene.locals.extend([Cow::Owned(key()), Cow::Borrowed(item)]);
        render(body, scene, out)?;
        scene.locals.truncate(outside);
        Ok(())
    };
    match (list, of) {
        (Value::Array(items), _) => {
            let present = items.iter().enumerate();
            let until_gap = |(_, item): &(usize, &Value)| of == Members::All || !item.is_null();
            let mut shown = present.take_while(until_gap);
            shown.try_for_each(|(index, item)| each(&|| Value::from(index + 1), item)).map_err(Some)
        }
        (Value::Object(members), Members::All) => {
            let mut members = members.iter();
            members.try_for_each(|(name, item)| each(&|| Value::from(name.as_str()), item)).map_err(Some)
        }
        (Value::Object(_), Members::Items) => Ok(()),
        _ => Err(None),
    }
}

fn at(line: usize, problem: &str) -> String {
    format!("line {line} of the template: {problem}")
}

fn push(text: &str, scene: &mut Scene<'_>, out: &mut String) -> Result<(), String> {
    scene.spend(text.len())?;
    check_room(out.len() + text.len(), scene)?;
    out.push_str(text);
    Ok(())
}

/// The same for a text that is escaped for HTML, as lua-resty-template does.
fn push_escaped(text: &str, scene: &mut Scene<'_>, out: &mut String) -> Result<(), String> {
    scene.spend(text.len())?;
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '/' => out.push_str("&#47;"),
            char => out.push(char),
        }
        check_room(out.len(), scene)?;
    }
    Ok(())
}

fn check_room(bytes: usize, scene: &Scene<'_>) -> Result<(), String> {
    match bytes > scene.most_bytes {
        true => Err(format!("the template makes more than {} bytes", scene.most_bytes)),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::expression::SceneVariables;
    use super::*;
    use crate::testing::get;

    fn made(template: &str, root: &Value, most: usize) -> Result<String, String> {
        let exchange = get("/?name=hello&a=%3Cb%3E");
        let body = Value::from("the body");
        let template = BodyTemplate::parse(template).map_err(|error| error.to_string())?;
        template.render(&mut Scene::new(root, &body, SceneVariables::Exchange(&exchange), most))
    }

    fn data() -> Value {
        json!({
            "name": "hello", "age": 20, "text": "<a href='/'>&\"", "price": 1.5, "whole": 2.0, "none": null, "no": false,
            "list": ["x", "y", null, "z"], "people": [{"name": "a", "tags": ["1", "2"]}, {"name": "b", "tags": []}],
            "map": {"k": "v", "l": 2}, "or-so": 1, "digits": "30", "_escape_json": "mine", "empty": "", "zero": 0,
        })
    }

    #[test]
    fn templates_show_values_as_lua_resty_template_does() {
        for (template, want) in [
            ("plain {\"a\": {\"b\": 1}}", "plain {\"a\": {\"b\": 1}}"),
            (r#"{"foo":"{{name .. " world"}}","bar":{{age+10}}}"#, r#"{"foo":"hello world","bar":30}"#),
            ("{{text}}|{*text*}", "&lt;a href=&#39;&#47;&#39;&gt;&amp;&quot;|<a href='/'>&\""),
            (
                "{*_escape_json(text)*} {*_escape_xml(text)*}",
                "\"<a href='/'>&\\\"\" &lt;a href=&apos;/&apos;&gt;&amp;&quot;",
            ),
            ("{{_escape_xml(text)}}", "&lt;a href=&apos;/&apos;&gt;&amp;&quot;"),
            ("{{missing}}{{none}}{{missing or 'd'}}{{no}}", "dfalse"),
            ("{{price}} {{whole}} {{age/3 > 6}} {{7 % 3}} {{-7 % 3}} {{digits + 1}}", "1.5 2 true 1 2 31"),
            ("{{list[1]}}{{list[4]}}{{list[9]}}{{#list}}{{#name}}", "xz45"),
            ("{{map.k}}{{context.map['l']}}{{context['or-so']}}", "v21"),
            (
                "{*_body*} {{_ctx.var.arg_name}} {{_ctx.var['arg_a']}} {{_ctx.var.arg_none}}",
                "the body hello &lt;b&gt; ",
            ),
            ("{{1 + 2 * 3 - 4 / 2}} {{(1 + 2) * 3}} {{2 .. 3 .. 4}} {{not name == false}}", "5 9 234 true"),
            ("{{name == 'hello' and 'yes' or 'no'}} {{empty and 1}} {{zero and 1}} {{'a' < 'b'}}", "yes 1 1 true"),
            (
                "{{type(map)}} {{tostring(missing)}} {{tonumber(digits) + 1}} {{string.upper(name)}}",
                "table nil 31 HELLO",
            ),
            ("{* string.gsub(_body, \"the \", \"\") *}", "body"),
            ("a{# hidden #}b \\{{name}} {{\"\\\"'\"}}", "ab {{name}} &quot;&#39;"),
            ("{*_escape_json(map)*} {*_escape_json(none)*}", "{\"k\":\"v\",\"l\":2} null"),
            ("{{ {{", "{{ {{"),
        ] {
            assert_eq!(made(template, &data(), 1000).as_deref(), Ok(want), "{template}");
        }
    }

    #[test]
    fn templates_have_conditions_loops_and_variables() {
        for (template, want) in [
            ("{% if age > 18 then %}adult{% elseif age > 12 then %}young{% else %}child{% end %}", "adult"),
            ("{% if none == nil then %}nil{% end %}{% if name ~= nil then %}!{% end %}", "nil!"),
            ("{% for i, v in ipairs(list) do %}{{i}}{{v}},{% end %}", "1x,2y,"),
            (
                "{% for k, v in pairs(map) do %}{{k}}={{v}};{% end %}{% for k, v in pairs(list) do %}{{k}}{% end %}",
                "k=v;l=2;124",
            ),
            (
                "{% for _, p in ipairs(people) do %}<{{p.name}}>{% for _, t in ipairs(p.tags) do %}{{t}}{% end %}{% end %}",
                "<a>12<b>",
            ),
            ("{% local n = map.k; local m = n .. '!' %}{{m}}", "v!"),
            ("{% if true then local n = 1 %}{{n}}{% end %}{{n}}", "1"),
            ("{% for name, v in ipairs(list) do %}{{name}}{% end %}{{name}}", "12hello"),
            ("a\n  {% if name then %}\n  b\n  {% end %}\nc", "a\n  b\nc"),
            ("{% for _, v in ipairs(map) do %}x{% end %}", ""),
        ] {
            assert_eq!(made(template, &data(), 1000).as_deref(), Ok(want), "{template}");
        }
    }

    #[test]
    fn other_lua_is_refused_with_its_place() {
        for (template, want) in [
            ("a\n {{ ngx.time() }}", "line 2, column 5: `ngx` of Lua is not supported"),
            ("{% local yaml = require(\"tinyyaml\") %}", "line 1, column 17: `require` of Lua is not supported"),
            ("{{ string.format('%d', 1) }}", "line 1, column 4: `string.format` of Lua is not supported"),
            ("{{ string.gsub(name, '.', '') }}", "`string.gsub` is supported for quoted texts without patterns"),
            ("{{ name:upper() }}", "line 1, column 8: this call of Lua is not supported"),
            ("{{ f(1) }}", "line 1, column 5: this call of Lua is not supported"),
            ("{{ _ctx.consumer_name }}", "of `_ctx`, only `_ctx.var.NAME` is supported"),
            ("{{ _ctx.var.no_such_thing }}", "`no_such_thing` is not a variable"),
            ("{{ context._multipart:tostring() }}", "this call of Lua is not supported"),
            ("{% while true do %}", "of Lua's statements"),
            ("{% x = 1 %}", "of Lua's statements"),
            ("{% for i = 1, 3 do %}", "expected `,`"),
            ("{% if name %}", "expected `then`"),
            ("{% if name then %}", "a block has no `{% end %}`"),
            ("{% else %}", "`else` has no `if`"),
            ("{% end %}", "`end` has no block"),
            ("{(file.html)}", "line 1, column 1: `{(` is not supported"),
            ("{{ }}", "expected a value"),
            ("{{ 'a }}", "is a string without an end"),
            ("{{ 2 ^ 3 }}", "is no part of an expression"),
            ("{{ 0x10 }}", "is no decimal number"),
            ("{{ _escape_json() }}", "expected a value"),
            ("{{ _escape_json(1, 2) }}", "takes 1 arguments"),
        ] {
            let error = BodyTemplate::parse(template).expect_err(template).to_string();
            assert!(error.contains(want), "{template}: {error}");
        }
        for deep in ["(", "not ", "-", "a[", "{% if a then %}"] {
            let template =
                if deep.starts_with('{') { deep.repeat(200) } else { format!("{{{{{}1}}}}", deep.repeat(200)) };
            let error = BodyTemplate::parse(&template).expect_err(deep).to_string();
            assert!(error.contains("is nested deeper than 128"), "{deep}: {error}");
        }
        for long in [" + 1", " .. 1", ".a", "[1]"] {
            let template = format!("{{{{a{}}}}}", long.repeat(200));
            assert!(BodyTemplate::parse(&template).is_err(), "{long}");
        }
    }

    #[test]
    fn template_errors_name_their_line() {
        for (template, want) in [
            ("\n{{missing.name}}", "line 2 of the template: `missing` is a nil, which has no members"),
            ("{{map.k.x.y}}", "`map.k` is a string, which has no members"),
            ("{{map}}", "a table is no text"),
            ("{{name + 1}}", "a string is no number"),
            ("{{1 / 0}}", "is no finite number"),
            ("{{no .. 'a'}}", "a boolean cannot be joined"),
            ("{{name < 1}}", "a string and a number have no order"),
            ("{{_escape_xml(missing)}}", "a nil is no text"),
            ("{% for _, v in ipairs(name) do %}{% end %}", "`for` needs a list"),
            ("{% for _, v in ipairs(missing) do %}{% end %}", "`for` needs a list"),
        ] {
            let error = made(template, &data(), 1000).expect_err(template);
            assert!(error.contains(want), "{template}: {error}");
        }
    }

    #[test]
    fn work_of_a_template_is_bounded() {
        let many = json!({"a": vec![0; 2000], "text": "x".repeat(600)});
        let nested = "{% for _, x in ipairs(a) do for _, y in ipairs(a) do %}{% end end %}";
        assert!(made(nested, &many, 1000).expect_err("too long").contains("takes more than 1000000 steps"));
        // What a loop leaves out is looked at, too.
        let nulls = json!({"a": vec![0; 2000], "n": vec![Value::Null; 2000]});
        let nested = "{% for _, x in ipairs(a) do for _, y in pairs(n) do %}{% end end %}";
        assert!(made(nested, &nulls, 1000).expect_err("too long").contains("takes more than 1000000 steps"));
        let long = json!({"a": vec![0; 2000], "text": "x".repeat(1 << 20), "same": "x".repeat(1 << 20)});
        for read in ["text == same", "text < same", "tonumber(text)", "context[text]", "#text"] {
            let template = format!("{{% for _, x in ipairs(a) do if {read} then end end %}}");
            assert!(
                made(&template, &long, 2 << 20).expect_err(read).contains("takes more than 1000000 steps"),
                "{read}"
            );
        }
        assert!(made("{{text}}{{text}}", &many, 1000).expect_err("too large").contains("makes more than 1000 bytes"));
        assert!(
            made("{{text .. text}}", &many, 1000)
                .expect_err("too large")
                .contains("makes a text of more than 1000 bytes")
        );
        let quotes = json!({ "text": "\"".repeat(400) });
        for (escaping, want) in [
            ("{{text}}", "the template makes more than 1000 bytes"),
            ("{*_escape_xml(text)*}", "makes a text of more than 1000 bytes"),
            ("{*_escape_json(context)*}", "makes a text of more than 800 bytes"),
        ] {
            let most = if want.contains("800") { 800 } else { 1000 };
            let error = made(escaping, &quotes, most).expect_err("too large");
            assert!(error.contains(want), "{escaping}: {error}");
        }
        let replaced = "{* string.gsub(text, 'x', 'yyyyyyyyyy') *}";
        assert!(made(replaced, &many, 1000).expect_err("too large").contains("makes a text of more than 1000 bytes"));
    }
}
