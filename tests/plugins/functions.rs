//! Functions of serverless platforms answer in place of an upstream.

use std::net::TcpListener;

use aws_lc_rs::{digest, hmac};
use weir_testkit::{Answer, Client, Gate, Gateway, Origin, Reading, Request};

/// A gateway whose route has a plugin and no upstream.
fn gateway(uri: &str, plugins: &str) -> Gateway {
    gateway_with(uri, plugins, "")
}

/// A busy machine must not pass for a slow function.
fn gateway_with(uri: &str, plugins: &str, more: &str) -> Gateway {
    let plugins = match plugins.contains("timeout:") {
        true => plugins.to_owned(),
        false => plugins.replace("function_uri:", "timeout: 20000, function_uri:"),
    };
    Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
        .start(&format!("routes:\n  - {{ id: function, uri: \"{uri}\", plugins: {{ {plugins} }} }}\n{more}"))
}

/// A client by HTTP/1.1, and one by HTTP/2.
fn clients(gateway: &Gateway) -> [Client; 2] {
    [Client::connect(gateway.addr()), Client::connect(gateway.addr()).by_http2()]
}

/// A function that answers with the method, the target and the body of its call.
fn function() -> Origin {
    Origin::serving(|request| {
        let text = format!("{} {} {}", request.method, request.target, String::from_utf8_lossy(&request.body));
        Answer::with(201, "Content-Type: text/plain\r\nX-Of-Function: yes\r\nKeep-Alive: timeout=5\r\n", text)
    })
}

fn post(path: &str, fields: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {}\r\n{fields}\r\n{body}", body.len())
}

/// One value of a field of a request.
fn field<'a>(request: &'a Request, name: &'a str) -> &'a str {
    let mut values = request.headers.all(name);
    let (first, second) = (values.next(), values.next());
    assert_eq!(second, None, "{name} is there twice");
    first.unwrap_or("")
}

#[test]
fn a_function_gets_the_request_and_its_response_is_passed_on() {
    let function = function();
    let plugin = format!("aws-lambda: {{ function_uri: \"http://{}/prod/orders?stage=1\" }}", function.addr());
    let gateway = gateway("/aws/*", &plugin);
    for mut client in clients(&gateway) {
        let request =
            post("/aws/7/%2e%2e/8?a=b%20c", "Content-Type: text/plain\r\nX-Forwarded-For: 10.0.0.1\r\nA: 1\r\n", "hi");
        let answer = client.ask(request).expect("an answer");
        assert_eq!((answer.status, answer.text()), (201, "POST /prod/orders/8?stage=1&a=b%20c hi".to_owned()));
        assert_eq!(answer.headers.get("x-of-function"), Some("yes"));
        assert!(!answer.headers.has("keep-alive"), "it is for the connection to the function");
        let head = client.ask("HEAD /aws/ HTTP/1.1\r\nHost: t\r\n\r\n").expect("an answer");
        assert_eq!((head.status, head.text()), (201, String::new()));
        assert_eq!(client.get("/aws/").expect("on the same connection").text(), "GET /prod/orders?stage=1 ");
    }
    for request in function.requests().iter().step_by(3) {
        assert_eq!(field(request, "host"), function.addr().to_string());
        assert_eq!(field(request, "x-forwarded-host"), "shop.example");
        assert_eq!([field(request, "x-forwarded-for"), field(request, "x-real-ip")], ["127.0.0.1"; 2]);
        assert_eq!([field(request, "a"), field(request, "content-type")], ["1", "text/plain"]);
        assert!(!request.headers.has("authorization") && !request.headers.has("x-api-key"));
    }
    assert!(function.violations().is_empty(), "{:?}", function.violations());
}

#[test]
fn a_path_that_would_lead_out_of_the_functions_path_is_refused() {
    let function = function();
    let plugin = format!("azure-functions: {{ function_uri: \"http://{}/api/orders\" }}", function.addr());
    let route = "allow_encoded_slashes: true, uri: \"/aws*\"";
    let gateway = Gateway::with_binary(env!("CARGO_BIN_EXE_weir"))
        .start(&format!("routes: [{{ id: function, {route}, plugins: {{ {plugin} }} }}]\n"));
    for mut client in clients(&gateway) {
        let wrong =
            ["/aws..", "/aws.", "/aws../admin/x", "/aws./x", "/aws.%2e/x", "/aws%2e%2E/x", "/aws..;a/x", "/aws..%2Fx"];
        for path in wrong {
            assert_eq!(client.get(path).expect("an answer").status, 400, "{path}");
        }
        for (path, want) in
            [("/aws/x", "/x"), ("/aws..x", "/..x"), ("/aws/.well-known/x", "/.well-known/x"), ("/aws", "")]
        {
            assert_eq!(client.get(path).expect("an answer").text(), format!("GET /api/orders{want} "), "{path}");
        }
    }
    assert_eq!(function.requests().len(), 8);
}

#[test]
fn the_path_behind_a_uri_is_found_in_whatever_form_the_uri_is_written() {
    let function = function();
    let plugin = format!("azure-functions: {{ function_uri: \"http://{}/api\" }}", function.addr());
    for uri in ["/%61ws/./*", "/aws/*rest", "/:team/*"] {
        assert_eq!(gateway(uri, &plugin).client().get("/aws/7").expect("an answer").text(), "GET /api/7 ", "{uri}");
    }
    let unclear = gateway("/a/*/f/*", &plugin);
    assert_eq!(unclear.client().get("/a/1/f/7").expect("an answer").status, 500);
    unclear.wait_stderr("it is said", |text| text.contains("it is not clear what the last `*` of the uri `/a/*/f/*`"));
    assert_eq!(function.requests().len(), 3);
}

/// The signature of a request as AWS computes it, from what the function has received.
fn signature(request: &Request, secret: &str, scope: &str) -> String {
    let hash = |bytes: &[u8]| hex::encode(digest::digest(&digest::SHA256, bytes).as_ref());
    let sign =
        |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec();
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    pairs.sort_unstable();
    let names = ["content-type", "host", "x-amz-date"];
    let lines: String = names.iter().map(|name| format!("{name}:{}\n", field(request, name))).collect();
    let path = path.replace('%', "%25");
    let (method, names, content) = (&request.method, names.join(";"), hash(&request.body));
    let canonical = format!("{method}\n{path}\n{}\n{lines}\n{names}\n{content}", pairs.join("&"));
    let date = field(request, "x-amz-date");
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hash(canonical.as_bytes()));
    let key = scope.split('/').fold(format!("AWS4{secret}").into_bytes(), |key, part| sign(&key, part));
    hex::encode(sign(&key, &to_sign))
}

#[test]
fn requests_are_signed_for_aws_and_the_client_has_no_say_in_it() {
    let function = function();
    let plugin = format!(
        "aws-lambda: {{ function_uri: \"http://{}/a%20b\", authorization: {{ apikey: the-key, iam: {{ accesskey: AKIDEXAMPLE, \
         secretkey: the+secret/key, aws_region: eu-west-1, service: lambda }} }} }}",
        function.addr()
    );
    let gateway = gateway("/aws", &plugin);
    for mut client in clients(&gateway) {
        let fields = "Content-Type: application/json\r\nAuthorization: Bearer of-the-client\r\nX-Amz-Date: 20000101T000000Z\r\n\
             X-Amz-Invocation-Type: Event\r\nx-amz-security-token: of-the-client\r\n";
        let target = "/aws?b=2&X-Amz-Security-Token=of-the-client&a=x+y&x%2Damz-date=1";
        let answer = client.ask(post(target, fields, "{\"n\":1}")).expect("an answer");
        assert_eq!((answer.status, answer.text()), (201, "POST /a%20b?b=2&a=x%20y {\"n\":1}".to_owned()));
    }
    for request in function.requests() {
        let day = &field(&request, "x-amz-date")[..8];
        let scope = format!("{day}/eu-west-1/lambda/aws4_request");
        let signature = signature(&request, "the+secret/key", &scope);
        let expected = format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{scope}, SignedHeaders=content-type;host;x-amz-date, Signature={signature}"
        );
        assert_eq!(field(&request, "authorization"), expected);
        assert_ne!(day, "20000101");
        assert!(!request.headers.has("x-amz-invocation-type") && !request.headers.has("x-amz-security-token"));
        assert_eq!(field(&request, "x-api-key"), "the-key");
    }
    let own = post("/aws", "Content-Type: text/plain\r\nX-API-Key: of-the-client\r\n", "");
    assert_eq!(gateway.client().ask(own).expect("an answer").status, 201);
    assert_eq!(field(&function.requests()[2], "x-api-key"), "of-the-client", "as in APISIX");
}

#[test]
fn functions_of_azure_get_the_keys_of_the_plugin_or_else_of_the_metadata() {
    let function = function();
    let addr = function.addr();
    let metadata = "plugin_metadata: [{ id: azure-functions, master_apikey: master, master_clientid: all }]\n";
    let own = format!("azure-functions: {{ function_uri: \"http://{addr}/api\", authorization: {{ apikey: own }} }}");
    let none = format!("azure-functions: {{ function_uri: \"http://{addr}/api\" }}");
    for (plugin, metadata, fields, want) in [
        (&own, metadata, "", ["own", ""]),
        (&none, metadata, "", ["master", "all"]),
        (&none, "", "", ["", ""]),
        (&own, metadata, "X-Functions-Key: of-the-client\r\n", ["of-the-client", ""]),
        (&none, metadata, "X-Functions-ClientId: of-the-client\r\n", ["", "of-the-client"]),
    ] {
        let gateway = gateway_with("/azure/*", plugin, metadata);
        for mut client in clients(&gateway) {
            let request = format!("GET /azure/HttpTrigger1?name=a HTTP/1.1\r\nHost: t\r\n{fields}\r\n");
            assert_eq!(client.ask(request).expect("an answer").text(), "GET /api/HttpTrigger1?name=a ");
            let request = function.requests().pop().expect("it was called");
            assert_eq!([field(&request, "x-functions-key"), field(&request, "x-functions-clientid")], want, "{fields}");
        }
    }
}

#[test]
fn functions_of_openfunction_get_a_user_and_a_password() {
    let function = function();
    let plugin = format!(
        "openfunction: {{ function_uri: \"http://{}/default/sample\", authorization: {{ service_token: \"user:word\" }} }}",
        function.addr()
    );
    let gateway = gateway("/hello", &plugin);
    for mut client in clients(&gateway) {
        assert_eq!(client.ask(post("/hello", "", "test")).expect("an answer").text(), "POST /default/sample test");
        let own = post("/hello", "Authorization: Basic b3duOm93bg==\r\n", "");
        assert_eq!(client.ask(own).expect("an answer").status, 201);
    }
    let sent: Vec<String> =
        function.requests().iter().map(|request| field(request, "authorization").to_owned()).collect();
    let expected = ["Basic dXNlcjp3b3Jk", "Basic b3duOm93bg=="];
    assert_eq!(sent, [expected, expected].concat());
}

#[test]
fn actions_of_openwhisk_get_json_and_nothing_else_of_the_client() {
    let function = function();
    let plugin = format!(
        "openwhisk: {{ api_host: \"http://{}\", service_token: \"user:word\", namespace: guest, package: \"a b\", action: test, \
         result: false, timeout: 5000 }}",
        function.addr()
    );
    let gateway = gateway("/hello/*", &plugin);
    let target = "/api/v1/namespaces/guest/actions/a%20b/test?blocking=true&result=false&timeout=5000";
    for mut client in clients(&gateway) {
        let json = post(
            "/hello/a?b=c",
            "Content-Type: application/json\r\nCookie: a=b\r\nAuthorization: Bearer t\r\n",
            "{\"n\":1}",
        );
        assert_eq!(client.ask(json).expect("an answer").text(), format!("POST {target} {{\"n\":1}}"));
        assert_eq!(client.get("/hello/").expect("an answer").text(), format!("POST {target} "));
        let text = client.ask(post("/hello/", "Content-Type: text/plain\r\n", "hi")).expect("an answer");
        assert_eq!(text.status, 415);
    }
    let requests = function.requests();
    assert_eq!(requests.len(), 4);
    for request in requests {
        assert_eq!(field(&request, "authorization"), "Basic dXNlcjp3b3Jk");
        assert_eq!(field(&request, "content-type"), "application/json");
        assert!(!request.headers.has("cookie") && !request.headers.has("x-forwarded-for"), "{request:?}");
    }
}

#[test]
fn a_response_is_sent_while_it_comes() {
    let gate = Gate::new();
    let opened = gate.clone();
    let function = Origin::scripted(Reading::Strict, move |connection| {
        let Ok(request) = connection.request() else { return };
        connection.record(&request);
        let first = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n";
        let _ = connection.send_gated(&opened, &[first, b"4\r\nlast\r\n0\r\n\r\n"]);
    });
    let gateway =
        gateway("/f", &format!("openfunction: {{ function_uri: \"http://{}\", timeout: 20000 }}", function.addr()));
    let mut client = gateway.client();
    client.send("GET /f HTTP/1.1\r\nHost: t\r\n\r\n");
    gate.open_once();
    assert_eq!(client.response_head("GET").expect("a head").status, 200);
    assert_eq!(client.chunk().expect("what has come of the content"), b"first");
    gate.open_once();
    assert_eq!(client.chunk().expect("the rest"), b"last");
}

#[test]
fn clients_learn_that_a_function_fails() {
    let gone = format!("http://127.0.0.1:{}/f", weir_testkit::free_port());
    let gateway_of =
        |uri: &str, more: &str| gateway("/f", &format!("aws-lambda: {{ function_uri: \"{uri}\", {more} }}"));
    let without = gateway_of(&gone, "");
    assert_eq!(without.get("/f").status, 502);
    without.wait_stderr("it is said", |text| text.contains("aws-lambda: connecting to 127.0.0.1"));
    // Accepts connections and does not answer.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = format!("http://{}/f", silent.local_addr().expect("it is bound"));
    assert_eq!(gateway_of(&silent, "timeout: 200").get("/f").status, 504);
    let broken = Origin::serving(|_| Answer::raw("HTTP/1.1 200 OK\r\nContent-Le").then_close());
    assert_eq!(gateway_of(&format!("http://{}", broken.addr()), "").get("/f").status, 502);
    let function = function();
    let small = gateway_of(&format!("http://{}", function.addr()), "max_req_body_size: 3");
    let status = |body: &str| small.client().ask(post("/f", "", body)).expect("an answer").status;
    assert_eq!([status("abc"), status("abcd")], [201, 413]);
    assert_eq!(function.requests().len(), 1);
}

#[test]
fn a_function_answers_alone() {
    let said = crate::refused("{ aws-lambda: { function_uri: 'http://127.0.0.1:1' }, proxy-cache: {} }");
    assert!(said.contains("answers in place of the upstream, and so does `proxy-cache`"), "{said}");
}
