//! `body-transformer`: bodies made of bodies.

use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};
use weir_testkit::{Answer, DEADLINE, Gateway, Origin, Program, Response, TempDir, eventually, free_port};

use crate::{Rig, refused};

/// The templates of APISIX's example for SOAP, with another namespace.
const SOAP_REQUEST: &str = r#"<?xml version="1.0"?>
<soap-env:Envelope xmlns:soap-env="http://schemas.xmlsoap.org/soap/envelope/">
 <soap-env:Body>
  <ns0:getCountryRequest xmlns:ns0="urn:countries">
   <ns0:name>{{_escape_xml(name)}}</ns0:name>
  </ns0:getCountryRequest>
 </soap-env:Body>
</soap-env:Envelope>"#;
/// Here `{*_escape_json(...)*}` stands where the example has `"{{...}}"`, so that names may have any characters.
const SOAP_RESPONSE: &str = r#"{% if Envelope.Body.Fault == nil then %}
{
  "status":"{{_ctx.var.status}}",
  "currency":"{{Envelope.Body.getCountryResponse.country.currency}}",
  "population":{{Envelope.Body.getCountryResponse.country.population}},
  "capital":{*_escape_json(Envelope.Body.getCountryResponse.country.capital)*},
  "name":{*_escape_json(Envelope.Body.getCountryResponse.country.name)*}
}
{% else %}
{
  "message":{*_escape_json(Envelope.Body.Fault.faultstring[1])*},
  "code":"{{Envelope.Body.Fault.faultcode}}"
  {% if Envelope.Body.Fault.faultactor ~= nil then %}
  , "actor":"{{Envelope.Body.Fault.faultactor}}"
  {% end %}
}
{% end %}"#;

fn post(gateway: &Gateway, kind: &str, body: &str) -> Response {
    post_with(gateway, &format!("Content-Type: {kind}\r\n"), body.as_bytes())
}

fn post_with(gateway: &Gateway, fields: &str, body: &[u8]) -> Response {
    let head = format!("POST /anything HTTP/1.1\r\nHost: t\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    gateway.client().ask([head.as_bytes(), body].concat()).expect("an answer")
}

/// A rig whose upstream answers with the body, the type and the length that it has received.
fn echoing(transformer: &Value) -> Rig {
    let origin = Origin::serving(|request| {
        let field = |name: &str| request.headers.get(name).unwrap_or("-").to_owned();
        Answer::with(
            200,
            "Content-Type: application/json\r\nETag: \"1\"\r\n",
            format!("{} {} {}", field("content-type"), field("content-length"), String::from_utf8_lossy(&request.body)),
        )
    });
    let plugins = json!({ "body-transformer": transformer }).to_string();
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&crate::file(1, &plugins, &origin));
    Rig { gateway, origin }
}

#[test]
fn soap_service_is_used_with_json() {
    let Some(mut command) = Program::find("python3") else { return };
    let port = free_port();
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/plugins/soap_server.py");
    command.arg(server.canonicalize().expect("it is there")).arg(port.to_string());
    let _server = Program::start(command, TempDir::new());
    eventually("the SOAP service listens", DEADLINE, || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let plugins = json!({
        "body-transformer": {
            "request": {"template": SOAP_REQUEST, "input_format": "json"},
            "response": {"template": SOAP_RESPONSE, "input_format": "xml"},
        },
        "proxy-rewrite": {"headers": {"set": {"Content-Type": "text/xml"}}},
        "response-rewrite": {"headers": {"set": {"Content-Type": "application/json"}}},
    });
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&format!(
        "routes: [{{ uri: /*, plugins: {plugins}, upstream: {{ nodes: {{ '127.0.0.1:{port}': 1 }} }} }}]\n"
    ));
    let told = |name: &str| {
        let answer = post(&gateway, "application/x-www-form-urlencoded", &json!({ "name": name }).to_string());
        assert_eq!(answer.headers.get("content-type"), Some("application/json"));
        let value: Value = serde_json::from_str(&answer.text()).unwrap_or_else(|_| panic!("{}", answer.text()));
        (answer.status, value)
    };
    let spain =
        json!({"status": "200", "currency": "EUR", "population": 46_704_314, "capital": "Madrid", "name": "Spain"});
    assert_eq!(told("Spain"), (200, spain));
    let odd = json!({"status": "200", "currency": "EUR", "population": 30_000, "capital": "Mariehamn & Co", "name": "<Åland>"});
    assert_eq!(told("<Åland>"), (200, odd));
    let fault = json!({"message": "no country Atl\"antis\"", "code": "s:Client"});
    assert_eq!(told("Atl\"antis\""), (500, fault));
    assert_eq!(post(&gateway, "application/json", "Spain").status, 400);
}

#[test]
fn body_of_a_request_is_made_by_a_template() {
    let rig = echoing(&json!({"request": {"template": "{\"foo\":\"{{name .. \" world\"}}\",\"bar\":{{age+10}}}"}}));
    let want = r#"{"foo":"hello world","bar":30}"#;
    let json = r#"{"name":"hello","age":20}"#;
    assert_eq!(post(&rig.gateway, "application/json", json).text(), format!("application/json 30 {want}"));
    let form = "application/x-www-form-urlencoded";
    assert_eq!(post(&rig.gateway, form, "name=hello&age=20").text(), format!("{form} 30 {want}"));
    assert_eq!(rig.gateway.get("/a?name=hello&age=20").text(), format!("- 30 {want}"));
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n\
         {:x}\r\n{json}\r\n0\r\n\r\n",
        json.len()
    );
    assert_eq!(rig.gateway.client().ask(chunked).expect("an answer").text(), format!("application/json 30 {want}"));
    for (kind, body, why) in [
        ("application/json", "{", "the body is no JSON"),
        ("application/json", "{}", "line 1 of the template"),
        ("text/xml", "<a>&b;</a>", "has an entity"),
        ("multipart/form-data", "x", "has no `boundary`"),
    ] {
        let answer = post(&rig.gateway, kind, body);
        assert_eq!(answer.status, 400, "{kind}");
        assert!(answer.text().contains(why), "{}", answer.text());
    }
    assert_eq!(rig.origin.requests().len(), 4);
}

#[test]
fn body_of_a_request_is_made_of_other_formats_and_variables() {
    let template = "{{name}} {{_ctx.var.http_x_a}}{% for _, t in ipairs(tags) do %},{{t}}{% end %}";
    for (format, kind, body) in [
        ("xml", "a/b", "<name>x</name>"),
        ("json", "a/b", r#"{"name": "x"}"#),
        (
            "multipart",
            "multipart/related; boundary=b",
            "--b\r\nContent-Disposition: form-data; name=name\r\n\r\nx\r\n--b--\r\n",
        ),
    ] {
        let rig = echoing(
            &json!({"request": {"template": template.replace("tags", "context.tags or context"), "input_format": format}}),
        );
        let answer = post_with(&rig.gateway, &format!("Content-Type: {kind}\r\nX-A: 1\r\n"), body.as_bytes());
        assert_eq!(answer.text(), format!("{kind} 3 x 1"), "{format}");
    }
    let replaced = "{\"message\": \"{* string.gsub(_body, \"not \", \"\") *}\"}";
    let rig = echoing(
        &json!({"request": {"template": replaced, "input_format": "plain", "content_type": "application/json"}}),
    );
    let answer = post(&rig.gateway, "text/plain", "not actually json");
    assert_eq!(answer.text(), "application/json 28 {\"message\": \"actually json\"}");
}

#[test]
fn body_of_a_request_keeps_its_bounds() {
    let template = "{% for _, x in ipairs(list) do for _, y in ipairs(list) do %}{{x}}{% end end %}";
    let rig = echoing(&json!({"request": {"template": template}, "max_req_body_size": 1000}));
    let list = |count: usize| format!("{{\"list\": [{}1]}}", "1,".repeat(count));
    assert_eq!(
        post(&rig.gateway, "application/json", &list(9)).text(),
        format!("application/json 100 {}", "1".repeat(100))
    );
    let answer = post(&rig.gateway, "application/json", &list(50));
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("the template makes more than 1000 bytes"), "{}", answer.text());
    assert_eq!(post(&rig.gateway, "application/json", &list(600)).status, 413);
    assert_eq!(
        post_with(&rig.gateway, "Content-Encoding: zstd\r\nContent-Type: application/json\r\n", b"x").status,
        415
    );
    let deep = "[".repeat(400);
    assert!(post(&rig.gateway, "application/json", &deep).text().contains("nested deeper than 100"));
    assert_eq!(rig.origin.requests().len(), 1);
}

#[test]
fn body_of_a_response_is_made_by_a_template() {
    let origin = Origin::serving(|request| match request.target.as_str() {
        "/xml" => Answer::with(404, "Content-Type: text/xml\r\nETag: \"1\"\r\n", "<a><b>1</b><b>2</b></a>"),
        "/other" => Answer::with(200, "Content-Type: text/xml\r\n", "no XML"),
        "/stream" => Answer::with(200, "Content-Type: text/event-stream\r\n", "data: 1\n\n"),
        "/large" => Answer::with(200, "Content-Type: text/xml\r\n", "x".repeat(5000)),
        _ => Answer::with(200, "Content-Type: text/plain\r\nContent-Encoding: zstd\r\n", "coded"),
    });
    let plugins = json!({
        "body-transformer": {
            "response": {"template": "{{a.b[2]}} {{_body}} {{_ctx.var.status}}", "content_type": "text/plain"},
            "max_resp_body_size": 1000,
        },
        "ip-restriction": {"blacklist": ["127.0.0.2"]},
    });
    let gateway =
        Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&crate::file(1, &plugins.to_string(), &origin));
    let answer = gateway.get("/xml");
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (404, "2 &lt;a&gt;&lt;b&gt;1&lt;&#47;b&gt;&lt;b&gt;2&lt;&#47;b&gt;&lt;&#47;a&gt; 404")
    );
    assert_eq!((answer.headers.get("content-type"), answer.headers.get("etag")), (Some("text/plain"), None));
    for path in ["/other", "/stream", "/large", "/coded"] {
        assert_eq!(gateway.get(path).status, 502, "{path}");
    }
    gateway.wait_stderr("the reason", |log| {
        log.contains("body-transformer replaces a response of the route `all` with the status 200")
    });
    assert!(origin.requests().iter().all(|request| !request.headers.has("accept-encoding")));
    let mut other = weir_testkit::Client::connect_from([127, 0, 0, 2].into(), gateway.addr()).expect("it listens");
    let refusal = other.get("/xml").expect("an answer");
    assert_eq!((refusal.status, refusal.text().contains("message")), (403, true), "the gateway's own stays as it is");
}

#[test]
fn body_of_a_cached_response_is_made_by_a_template() {
    let origin = Origin::serving(|_| Answer::with(200, "Content-Type: application/json\r\n", "{\"a\": 1}"));
    let plugins = json!({
        "body-transformer": {"response": {"template": "a={{a}}"}},
        "proxy-cache": {"cache_strategy": "memory", "cache_ttl": 100},
    });
    let gateway =
        Gateway::with_binary(env!("CARGO_BIN_EXE_weir")).start(&crate::file(1, &plugins.to_string(), &origin));
    for _ in 0..2 {
        assert_eq!(gateway.get("/").text(), "a=1");
    }
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn template_that_is_not_supported_is_refused_with_its_place() {
    let said = refused(r#"{ body-transformer: { request: { template: "a\n{{ ngx.now() }}" } } }"#);
    assert!(said.contains("line 2, column 4: `ngx` of Lua is not supported"), "{said}");
}
