use super::*;

fn converted(text: &str) -> Converted {
    convert("api.yaml", text).expect("correct")
}

#[test]
fn a_definition_of_version_2_reads_as_one_would_write_it() {
    let text = "\
asyncapi: 2.6.0
servers:
  live: { url: 'wss://chat.example.com/v1', protocol: wss, security: [{ token: [] }] }
  events: { url: events.example.com, protocol: sse }
  hub: { url: 'https://hub.example.com/api/', protocol: websub }
  broker: { url: broker.example.com, protocol: kafka }
channels:
  /rooms/{room}:
    servers: [live]
    publish: { message: { oneOf: [{ $ref: '#/components/messages/Say' }, { payload: { type: string } }] } }
    subscribe: { message: { payload: { type: object } } }
  /prices:
    servers: [events]
    subscribe: {}
  orders/created:
    servers: [hub]
    subscribe: {}
  orders/{country}:
    servers: [hub]
    subscribe: {}
  log:
    servers: [broker]
components:
  securitySchemes:
    token: { type: httpApiKey, in: query, name: token }
  messages:
    Say: { payload: { $ref: '#/components/schemas/Say' } }
  schemas:
    Say: { type: object, required: [text], properties: { text: { type: string } } }
";
    assert_eq!(
        converted(text).yaml(),
        r##"# To be checked:
#   api.yaml:22: not converted: `log`: kafka is not converted, only WebSocket, HTTP and WebSub
#   api.yaml:25: not converted: `token`: a definition has no credentials; add `consumers` with `key-auth`
#   api.yaml:1: behaves differently: WebSub: publishers have to log in as consumers, or sign with `publish.secret`; callbacks have to be public

data_dir: /var/lib/weir

upstreams:
  # api.yaml:3: server
  - id: api
    nodes: { chat.example.com:443: 1 }
    scheme: https
    pass_host: node
  # api.yaml:4: server
  - id: api-2
    nodes: { events.example.com:443: 1 }
    scheme: https
    pass_host: node

hubs:
  # api.yaml:1: channels over WebSub
  - id: hub
    url: https://hub.example.com/api/hub
    topics: [https://hub.example.com/api/orders/created, https://hub.example.com/api/orders/*]

routes:
  # api.yaml:9: channel /rooms/{room}
  - id: rooms-room
    uri: /v1/rooms/:room
    enable_websocket: true
    upstream_id: api
    plugins:
      key-auth: { query: token, hide_credentials: false }
      websocket-policy:
        client:
          schema:
            anyOf:
              - type: object
                required: [text]
                properties: { text: { type: string } }
              - { type: string }
  # api.yaml:13: channel /prices
  - id: prices
    uri: /prices
    methods: [GET]
    upstream_id: api-2
  # api.yaml:16: subscribing
  - id: hub
    uri: /api/hub
    hub_id: hub
  # api.yaml:16: topic orders/created
  - id: topic-orders-created
    uri: /api/orders/created
    hub_id: hub
  # api.yaml:19: topic orders/{country}
  - id: topic-orders-country
    uri: /api/orders/*
    hub_id: hub
"##
    );
}

#[test]
fn a_definition_of_version_3_means_the_same() {
    let text = "\
asyncapi: 3.0.0
servers:
  live: { host: 'localhost:9000', pathname: /v1, protocol: ws, security: [{ $ref: '#/components/securitySchemes/user' }] }
channels:
  room:
    address: /rooms/{room}
    messages: { say: { payload: { type: object } }, joined: { payload: { type: string } } }
operations:
  say: { action: receive, channel: { $ref: '#/channels/room' }, messages: [{ $ref: '#/channels/room/messages/say' }] }
  joined: { action: send, channel: { $ref: '#/channels/room' } }
components:
  securitySchemes: { user: { type: userPassword } }
";
    let yaml = converted(text).yaml();
    for part in [
        "nodes: { localhost:9000: 1 }",
        "uri: /v1/rooms/:room\n    enable_websocket: true\n    upstream_id: api\n",
        "basic-auth: { hide_credentials: false }",
        "websocket-policy:\n        client: { schema: { type: object } }",
    ] {
        assert!(yaml.contains(part), "{part}\n{yaml}");
    }
}

#[test]
fn a_login_that_cannot_be_converted_closes_the_channel() {
    let text = "\
asyncapi: 2.6.0
servers: { live: { url: 'ws://a', protocol: ws, security: [{ sign: [] }] } }
channels: { /a: { publish: {} } }
components: { securitySchemes: { sign: { type: X509 } } }
";
    let yaml = converted(text).yaml();
    assert!(yaml.contains("fault-injection") && !yaml.contains("upstream_id"), "{yaml}");
    assert!(yaml.contains("`sign`: a login of the type `x509` is not converted"), "{yaml}");
}

#[test]
fn other_documents_are_refused() {
    for (text, want) in [
        ("asyncapi: 1.2.0", "api.yaml:1: only AsyncAPI 2 and 3 are converted"),
        ("openapi: 3.0.0", "api.yaml:1: there is no `asyncapi`; an AsyncAPI definition begins with its version"),
    ] {
        assert_eq!(convert("api.yaml", text).expect_err("another kind").to_string(), want);
    }
}
