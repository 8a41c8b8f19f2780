//! Files that a configuration names: certificates and keys.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use weir_net::tls::CertificateDer;

use super::seen::SeenFiles;
use crate::document::Files;
use crate::text::substitute::VariableLookup;

/// No certificate chain is longer.
const MOST_BYTES: u64 = 1 << 20;

/// Reads each of `names`: files, relative ones beside the configuration, and `$env://NAME`.
pub(super) fn read<'n>(
    names: impl Iterator<Item = &'n str>,
    directory: &Path,
    environment: VariableLookup,
    seen: &mut SeenFiles,
) -> Files {
    let mut files = Files::new();
    for name in names {
        let content = match name.strip_prefix("$env://") {
            Some(variable) => environment(variable)
                .map(|text| Arc::from(text.as_bytes()))
                .ok_or_else(|| "the variable is not set".to_owned()),
            None => {
                let path = directory.join(name);
                seen.add(&path);
                content(&path)
            }
        };
        files.insert(name.into(), content);
    }
    files
}

/// Whom the system trusts. What of it cannot be read is left out: it is not ours to mend.
pub(super) fn system_roots() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

fn content(path: &Path) -> Result<Arc<[u8]>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err("it is a directory".to_owned());
    }
    let mut content = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut content).map_err(|error| error.to_string())?;
    match content.len() as u64 <= MOST_BYTES {
        true => Ok(content.into()),
        false => Err(format!("it is larger than {MOST_BYTES} bytes")),
    }
}
