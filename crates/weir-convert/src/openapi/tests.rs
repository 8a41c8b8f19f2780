use super::*;

fn converted(text: &str) -> Converted {
    convert("api.yaml", text).expect("correct")
}

fn findings(text: &str) -> Vec<String> {
    converted(text).findings.iter().map(|finding| finding.to_string().replace("api.yaml:", "")).collect()
}

const ORDERS: &str = "\
openapi: 3.0.3
info: { title: Orders, version: '1' }
servers:
  - url: https://{region}.example.com/v1/
    variables: { region: { default: eu } }
security:
  - key: []
paths:
  /orders:
    get:
      operationId: listOrders
      security: []
    post:
      summary: Places an order
      parameters:
        - { name: X-Tenant, in: header, required: true, schema: { type: string } }
      requestBody:
        required: true
        content:
          application/json:
            schema: { $ref: '#/components/schemas/Order' }
  /orders/{order-id}/bill.{format}:
    get: {}
components:
  securitySchemes:
    key: { type: apiKey, in: header, name: X-Api-Key }
  schemas:
    Order:
      type: object
      description: What is ordered
      required: [id, item]
      properties:
        id: { type: integer, readOnly: true }
        item: { type: string, nullable: true, example: tea }
        weight: { type: number, minimum: 0, exclusiveMinimum: true }
        code: { type: string, enum: ['1', '2'] }
        parts: { type: array, items: { $ref: '#/components/schemas/Order' } }
";

#[test]
fn a_definition_reads_as_one_would_write_it() {
    assert_eq!(
        converted(ORDERS).yaml(),
        r##"# To be checked:
#   api.yaml:26: not converted: `key`: a definition has no credentials; add `consumers` with `key-auth`

upstreams:
  # api.yaml:4: server
  - id: api
    nodes: { eu.example.com:443: 1 }
    scheme: https
    pass_host: node

routes:
  # api.yaml:11: GET /orders
  - id: listOrders
    uri: /v1/orders
    methods: [GET]
    upstream_id: api
  # api.yaml:14: POST /orders Places an order
  - id: post-orders
    uri: /v1/orders
    methods: [POST]
    upstream_id: api
    plugins:
      key-auth: { header: X-Api-Key, hide_credentials: false }
      request-validation:
        header_schema: { type: object, required: [X-Tenant] }
        body_schema:
          $ref: "#/definitions/Order"
          definitions:
            Order:
              type: object
              required: [item]
              properties:
                id: { type: integer }
                item: { type: [string, "null"] }
                weight: { type: number, exclusiveMinimum: 0 }
                code: { type: string, enum: ["1", "2"] }
                parts: { type: array, items: { $ref: "#/definitions/Order" } }
  # api.yaml:23: GET /orders/{order-id}/bill.{format}
  - id: get-orders-order-id-bill.-format
    uri: /v1/orders/*
    methods: [GET]
    vars: [[uri, "~~", '^/v1/orders/[^/]+/bill\.[^/]+$']]
    upstream_id: api
    plugins: { key-auth: { header: X-Api-Key, hide_credentials: false } }
"##
    );
}

#[test]
fn operation_with_an_unconverted_login_is_closed() {
    let text = |security: &str| {
        format!(
            "openapi: 3.1.0
servers: [{{ url: 'http://api:8080' }}]
security: {security}
paths: {{ /a: {{ get: {{}} }} }}
components:
  securitySchemes:
    key: {{ type: apiKey, in: query, name: k }}
    basic: {{ type: http, scheme: Basic }}
    cookie: {{ type: apiKey, in: cookie, name: c }}
    oidc: {{ type: openIdConnect, openIdConnectUrl: 'https://id.example/.well-known/openid-configuration' }}
"
        )
    };
    for closed in ["[{ cookie: [] }]", "[{ oidc: [] }]", "[{ key: [], basic: [] }]", "[{ unknown: [] }]"] {
        let yaml = converted(&text(closed)).yaml();
        assert!(yaml.contains("fault-injection: { abort: { http_status: 503 } }"), "{closed}: {yaml}");
        assert!(!yaml.contains("upstream_id"), "{closed}: {yaml}");
    }
    let yaml = converted(&text("[{ key: [] }, { basic: [] }, { oidc: [] }]")).yaml();
    assert!(
        yaml.contains("multi-auth:") && yaml.contains("- key-auth: { query: k") || yaml.contains("key-auth"),
        "{yaml}"
    );
    assert!(yaml.contains("write `openid-connect`"), "{yaml}");
    let yaml = converted(&text("[{ key: [] }, {}]")).yaml();
    assert!(!yaml.contains("key-auth: {") && yaml.contains("optional"), "{yaml}");
}

#[test]
fn unconverted_parts_are_reported_with_their_line() {
    let text = "\
openapi: 3.1.0
servers: [{ url: /v2 }]
webhooks: { order: {} }
paths:
  /elsewhere: { $ref: other.yaml }
  /a:
    post:
      parameters: [{ name: page, in: query, required: true }]
      requestBody:
        content: { application/json: { schema: { type: object } } }
    put:
      requestBody:
        required: true
        content: { application/json: { schema: { $ref: 'other.yaml#/Order' } } }
    patch:
      requestBody:
        required: true
        content: { application/xml: { schema: { type: object } } }
";
    let findings = findings(text);
    let want = [
        "2: not converted: no address of a server: write that of the API in place of 127.0.0.1:8080",
        "3: not converted: `webhooks`: requests that the API sends do not pass the gateway",
        "5: not converted: `/elsewhere`: the path stands elsewhere, in `other.yaml`",
        "8: not converted: `page` in the query is required; the gateway does not check it",
        "10: not converted: the body is optional; it is not validated",
        "14: not converted: `other.yaml#/Order` is not in this document; the body is not validated",
        "18: not converted: a body of the type `application/xml` is not validated",
    ];
    assert_eq!(findings, want);
}

#[test]
fn other_documents_are_refused() {
    for (text, want) in [
        ("swagger: '2.0'", "api.yaml:1: OpenAPI 2 (Swagger) is not converted; convert it to OpenAPI 3 first"),
        ("openapi: 4.0.0", "api.yaml:1: only OpenAPI 3 is converted"),
        ("a: b", "api.yaml:1: there is no `openapi`; an OpenAPI definition begins with its version"),
    ] {
        assert_eq!(convert("api.yaml", text).expect_err("another kind").to_string(), want);
    }
}
