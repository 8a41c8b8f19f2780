//! HTTP/3 by a browser.

use std::process::{Command, Stdio};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use weir_testkit::{Answer, BROWSER_DEADLINE, Identity, Origin, TempDir, chromium, eventually_some};

use crate::client::NAME;
use crate::programs::accepted;
use crate::{file, serve_file};

/// A page of 100 objects, which is loaded three times before it reports what it has seen.
const PAGE: &str = r#"<!doctype html><script>
(async () => {
    const fetched = await Promise.all([...Array(100).keys()].map(async number => {
        const answer = await fetch(`/object/${number}`, { cache: "no-store" });
        return await answer.text() === `/object/${number}`;
    }));
    const objects = performance.getEntriesByType("resource").filter(entry => entry.name.includes("/object/"));
    const page = performance.getEntriesByType("navigation");
    const protocols = new Set([...page, ...objects].map(entry => entry.nextHopProtocol));
    const seen = JSON.parse(sessionStorage.seen ?? "[]");
    seen.push(`${fetched.filter(right => right).length} of ${objects.length} by ${[...protocols].join("+")}`);
    sessionStorage.seen = JSON.stringify(seen);
    if (seen.length < 3) location.reload(); else await fetch(`/seen?${seen.join(",").replaceAll(" ", "_")}`);
})();
</script>"#;

/// The SHA-256 of the public key of a certificate: over QUIC, Chromium takes no certificate of an authority that it does not know, unless
/// it is told this.
fn pin(identity: &Identity) -> String {
    let key = PrivatePkcs8KeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
    let pair =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key.secret_pkcs8_der()).expect("a key of ECDSA");
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().expect("it can be written");
    BASE64_STANDARD.encode(digest(&SHA256, public.as_ref()))
}

#[test]
fn a_browser_loads_a_page_of_100_objects_again_and_again() {
    let Some(browser) = chromium() else { return };
    let origin = Origin::serving(|request| match request.target.split_once('?') {
        None if request.target == "/page" => Answer::with(200, "Content-Type: text/html\r\n", PAGE),
        _ => Answer::ok(&request.target),
    });
    let pins = std::cell::RefCell::new(String::new());
    let served = serve_file(|identity| {
        pins.replace(pin(identity));
        file(identity, &origin, "")
    });
    let (address, profile) = (served.gateway.tls_addr(), TempDir::new());
    let mut process = Command::new(browser)
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .arg("--remote-debugging-port=0") // keeps it running until it is told to end
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--origin-to-force-quic-on={NAME}:{}", address.port()))
        .arg(format!("--host-resolver-rules=MAP {NAME} {}", address.ip()))
        .arg(format!("--ignore-certificate-errors-spki-list={}", pins.borrow()))
        .arg(format!("https://{NAME}:{}/page", address.port()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it has told its version");
    let seen = || origin.targets().into_iter().find(|target| target.starts_with("/seen"));
    let outcome = std::panic::catch_unwind(|| eventually_some("the browser reports", BROWSER_DEADLINE, seen));
    process.kill().expect("it is our child");
    process.wait().expect("it is our child");
    let seen = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert_eq!(seen, format!("/seen?{}", ["100_of_100_by_h3"; 3].join(",")));
    assert!(accepted(&served) >= 1);
}
