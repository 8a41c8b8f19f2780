use super::*;

fn converted(text: &str) -> Converted {
    convert(&[("shop.yaml".to_owned(), text.to_owned())]).expect("correct")
}

const SHOP: &str = "\
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: shop
  annotations:
    nginx.ingress.kubernetes.io/proxy-body-size: 8m
    nginx.ingress.kubernetes.io/enable-access-log: 'false'
spec:
  ingressClassName: nginx
  rules:
  - host: shop.example
    http:
      paths:
      - path: /api
        pathType: Prefix
        backend: { service: { name: api, port: { number: 8080 } } }
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: edge, namespace: shop }
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: admin
  namespace: shop
  annotations:
    nginx.ingress.kubernetes.io/configuration-snippet: 'deny all;'
spec:
  rules:
  - host: shop.example
    http:
      paths:
      - path: /admin
        pathType: Prefix
        backend: { service: { name: api, port: { number: 8080 } } }
";

#[test]
fn each_ingress_becomes_routes_and_what_is_not_served_is_listed_with_its_line() {
    assert_eq!(
        converted(SHOP).yaml(),
        "\
# To be checked:
#   shop.yaml:1: not converted: Ingress shop/web: `enable-access-log`: The access log is a setting of the node, for all routes.
#   shop.yaml:18: not converted: Gateway shop/edge: only Ingresses are converted
#   shop.yaml:22: not converted: Ingress shop/admin: `configuration-snippet`: Configuration of nginx cannot be included; use plugins, such as `response-rewrite`, `proxy-rewrite`, `redirect`. The paths of this Ingress are answered with 503

listen: [\":80\"]

routes:
  # shop.yaml:22: Ingress shop/admin
  - id: ingress_shop_admin_0
    name: shop/admin
    host: shop.example
    uris: [/admin, /admin/*]
    plugins:
      fault-injection: { abort: { http_status: 503 } }
  # shop.yaml:1: Ingress shop/web, with proxy-body-size
  - id: ingress_shop_web_0
    name: shop/web
    host: shop.example
    uris: [/api, /api/*]
    plugins: { client-control: { max_body_size: 8388608 } }
    timeout: { connect: 5, send: 60, read: 60 }
    upstream:
      nodes: [{ host: api.shop.svc.cluster.local, port: 8080, weight: 1 }]
"
    );
}

#[test]
fn a_file_that_is_not_manifests_is_refused_with_its_line() {
    let error = convert(&[("a.yaml".to_owned(), format!("{SHOP}---\na: 1\n"))]).expect_err("refused");
    assert_eq!(error.place.line, SHOP.lines().count() + 1);
}

#[test]
fn hosts_whose_secret_is_not_there_are_redirected_to_a_port_that_nothing_opens() {
    const INGRESS: &str = "\
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: { name: shop, namespace: shop }
spec:
  tls: [{ hosts: [shop.example], secretName: shop-tls }]
  rules:
  - host: shop.example
    http: { paths: [{ path: /, pathType: Prefix, backend: { service: { name: web, port: { number: 80 } } } }] }
";
    const SECRET: &str = "\
---
apiVersion: v1
kind: Secret
metadata: { name: shop-tls, namespace: shop }
type: kubernetes.io/tls
data: { tls.crt: YQ==, tls.key: YQ== }
";
    let told = |text: &str| -> Vec<String> { converted(text).findings.iter().map(ToString::to_string).collect() };
    assert!(converted(INGRESS).yaml().contains("http_to_https"), "{}", converted(INGRESS).yaml());
    let found = told(INGRESS);
    let says = |finding: &String| {
        finding.contains("no Secret `shop-tls`") && finding.contains("No address with TLS is opened")
    };
    assert!(found.iter().any(says), "{found:#?}");
    let with = format!("{INGRESS}{SECRET}");
    assert!(converted(&with).yaml().contains(":443"), "{}", converted(&with).yaml());
    assert!(!told(&with).iter().any(|finding| finding.contains("No address with TLS")), "{:#?}", told(&with));
}
