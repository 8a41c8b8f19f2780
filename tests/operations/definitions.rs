//! Definitions of APIs that were converted serve as they say.

use std::process::Command;

use weir_testkit::{Answer, Gateway, Origin, TempDir};

use crate::weir;

const CONSUMERS: &str = "consumers: [{ username: jack, plugins: { key-auth: { key: jacks-key } } }]\n";

/// A gateway with what was made of a definition, and with consumers, which no definition has.
fn converted(dialect: &str, definition: &str, directory: &TempDir) -> Gateway {
    let file = directory.write("definition.yaml", definition);
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(["import", dialect]).arg(&file).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let yaml = String::from_utf8(output.stdout).expect("text");
    weir().start(&format!("{CONSUMERS}{}", yaml.replace("/var/lib/weir", &directory.path().display().to_string())))
}

#[test]
fn an_openapi_definition_is_served_and_enforced() {
    let origin = Origin::serving(|request| Answer::ok(format!("{} {}", request.method, request.target)));
    let directory = TempDir::new();
    let gateway = converted(
        "openapi",
        &format!(
            "openapi: 3.0.3
servers: [{{ url: 'http://{}/v1' }}]
security: [{{ key: [] }}]
paths:
  /orders:
    get: {{ security: [] }}
    post:
      parameters: [{{ name: X-Tenant, in: header, required: true }}]
      requestBody:
        required: true
        content: {{ application/json: {{ schema: {{ $ref: '#/components/schemas/Order' }} }} }}
  /orders/{{id}}/bill.{{format}}: {{ get: {{}} }}
components:
  securitySchemes: {{ key: {{ type: apiKey, in: header, name: X-Api-Key }} }}
  schemas:
    Order:
      type: object
      required: [id, item]
      properties:
        id: {{ type: integer, readOnly: true }}
        item: {{ type: string, nullable: true }}
        parts: {{ type: array, items: {{ $ref: '#/components/schemas/Order' }} }}
",
            origin.addr()
        ),
        &directory,
    );
    let ask = |method: &str, target: &str, fields: &str, body: &str| {
        let length = body.len();
        let head = format!("{method} {target} HTTP/1.1\r\nHost: t\r\n{fields}Content-Length: {length}\r\n\r\n");
        gateway.client().ask(head + body).expect("an answer").status
    };
    let (key, tenant) = ("X-Api-Key: jacks-key\r\n", "X-Tenant: a\r\nContent-Type: application/json\r\n");
    let both = format!("{key}{tenant}");
    for (want, method, target, fields, body) in [
        (200, "GET", "/v1/orders", "", ""),
        (404, "GET", "/v1/others", "", ""),
        (404, "DELETE", "/v1/orders", key, ""),
        (404, "GET", "/orders", "", ""),
        (401, "POST", "/v1/orders", tenant, r#"{"item":"tea"}"#),
        (400, "POST", "/v1/orders", key, r#"{"item":"tea"}"#),
        (200, "POST", "/v1/orders", &both, r#"{"item":"tea","parts":[{"item":null}]}"#),
        (400, "POST", "/v1/orders", &both, r#"{"item":"tea","parts":[{"item":1}]}"#),
        (400, "POST", "/v1/orders", &both, r#"{"id":7}"#),
        (200, "GET", "/v1/orders/7/bill.pdf", key, ""),
        (401, "GET", "/v1/orders/7/bill.pdf", "", ""),
        (404, "GET", "/v1/orders/7/bill", key, ""),
    ] {
        assert_eq!(ask(method, target, fields, body), want, "{method} {target} {fields:?} {body}");
    }
}

#[test]
fn an_asyncapi_definition_is_served_and_enforced() {
    let origin = Origin::serving(|request| Answer::ok(format!("{} {}", request.method, request.target)));
    let directory = TempDir::new();
    let definition = format!(
        "asyncapi: 3.0.0
servers:
  live: {{ host: '{0}', pathname: /v1, protocol: ws, security: [{{ $ref: '#/components/securitySchemes/key' }}] }}
  events: {{ host: '{0}', protocol: http }}
  topics: {{ host: api.example.com, protocol: websub, security: [{{ $ref: '#/components/securitySchemes/key' }}] }}
channels:
  room: {{ address: '/rooms/{{room}}', servers: [{{ $ref: '#/servers/live' }}], messages: {{ say: {{ payload: {{ type: object }} }} }} }}
  prices: {{ address: /prices, servers: [{{ $ref: '#/servers/events' }}] }}
  orders: {{ address: 'orders/{{country}}', servers: [{{ $ref: '#/servers/topics' }}] }}
operations:
  say: {{ action: receive, channel: {{ $ref: '#/channels/room' }} }}
  prices: {{ action: send, channel: {{ $ref: '#/channels/prices' }} }}
components:
  securitySchemes: {{ key: {{ type: httpApiKey, in: query, name: key }} }}
",
        origin.addr()
    );
    let gateway = converted("asyncapi", &definition, &directory);
    let ask = |method: &str, target: &str, fields: &str| {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: api.example.com\r\n{fields}\r\n");
        gateway.client().ask(request).expect("an answer").status
    };
    let content = "Content-Type: text/plain\r\nContent-Length: 0\r\n";
    for (want, method, target, fields) in [
        (200, "GET", "/prices", ""),
        (404, "POST", "/prices", "Content-Length: 0\r\n"),
        (401, "GET", "/v1/rooms/7", ""),
        (200, "GET", "/v1/rooms/7?key=jacks-key", ""),
        (401, "POST", "/orders/de", content),
        (202, "POST", "/orders/de?key=jacks-key", content),
        (401, "POST", "/hub", "Content-Length: 0\r\n"),
    ] {
        assert_eq!(ask(method, target, fields), want, "{method} {target}");
    }
}
