//! If `WEIR_TEST_TLS` is set, gateways whose file has no listener get one with TLS: what a feature does must not depend
//! on the transport. Clients that connect to one of them use TLS automatically.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::tls::{Authority, TlsClient};

/// The host of the certificate.
pub(crate) const NAME: &str = "t.test";

/// Whether tests use TLS.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os("WEIR_TEST_TLS").is_some()
}

/// A listener with TLS and its certificate, as the first lines of a configuration.
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

/// From now on clients use TLS for these addresses.
pub(crate) fn remember(addresses: &[SocketAddr]) {
    known().extend(addresses);
}

/// The TLS settings for an address; `None` if it does not need TLS.
pub(crate) fn client_for(address: SocketAddr) -> Option<&'static TlsClient> {
    static CLIENT: OnceLock<TlsClient> = OnceLock::new();
    known().contains(&address).then(|| CLIENT.get_or_init(|| TlsClient::trusting(Authority::of_tests())))
}

fn known() -> MutexGuard<'static, HashSet<SocketAddr>> {
    static ADDRESSES: OnceLock<Mutex<HashSet<SocketAddr>>> = OnceLock::new();
    ADDRESSES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}
