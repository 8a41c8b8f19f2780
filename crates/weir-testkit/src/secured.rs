//! Gateways whose file names no listener listen in TLS, where `WEIR_TEST_TLS` is set: what a feature does must not depend
//! on who carries it. A client that connects to one of them shakes hands by itself.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::tls::{Authority, TlsClient};

/// The host of the certificate.
pub(crate) const NAME: &str = "t.test";

/// Whether tests ask over TLS.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os("WEIR_TEST_TLS").is_some()
}

/// A listener in TLS and its certificate, as the first lines of a configuration.
pub(crate) fn settings() -> &'static str {
    static SETTINGS: OnceLock<String> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let identity = Authority::of_tests().identity(&[NAME]);
        let certificate = format!("{{ sni: {NAME}, cert: {:?}, key: {:?} }}", identity.certificate, identity.key);
        format!("listen: [{{ address: \"127.0.0.1:0\", tls: true }}]\nssls: [{certificate}]\n")
    })
}

/// Whether a configuration has these lines.
pub(crate) fn is_configured(file: &Path) -> bool {
    is_wanted() && std::fs::read_to_string(file).is_ok_and(|text| text.starts_with(settings()))
}

/// Clients shake hands with these addresses from now on.
pub(crate) fn remember(addresses: &[SocketAddr]) {
    known().extend(addresses);
}

/// How to shake hands with an address, if it is one of them.
pub(crate) fn client_for(address: SocketAddr) -> Option<&'static TlsClient> {
    static CLIENT: OnceLock<TlsClient> = OnceLock::new();
    known().contains(&address).then(|| CLIENT.get_or_init(|| TlsClient::trusting(Authority::of_tests())))
}

fn known() -> MutexGuard<'static, HashSet<SocketAddr>> {
    static ADDRESSES: OnceLock<Mutex<HashSet<SocketAddr>>> = OnceLock::new();
    ADDRESSES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}
