//! Files that another version of the arithmetic has computed.

use autobwd_core::ARITHMETIC_VERSION;

/// The warning for a file of that version of the arithmetic; `None` if it is this version. Files from before the
/// versions have none.
pub(crate) fn warning(file: &str, version: Option<u32>) -> Option<String> {
    let written = match version {
        Some(ARITHMETIC_VERSION) => return None,
        Some(version) => format!("with version {version} of the arithmetic"),
        None => "before arithmetic had versions".into(),
    };
    Some(format!(
        "{file} was written {written}, and this autobwd has version {ARITHMETIC_VERSION}: results may differ in their last bits \
         from the results of the run that wrote it"
    ))
}
