//! Pages within the pages of notebooks.

use std::io::{self, Write};

/// A page as an element of another one, in which its script runs and which it cannot reach.
pub(crate) fn inline(page: &str) -> String {
    let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
    format!(
        "<iframe srcdoc=\"{escaped}\" sandbox=\"allow-scripts allow-downloads\" \
         style=\"width: 100%; height: 600px; border: 0\"></iframe>"
    )
}

/// Writes an element in the form in which the kernel of Rust for Jupyter, evcxr, reads it from the standard output.
///
/// # Errors
/// Those of the standard output.
pub(crate) fn display(html: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "EVCXR_BEGIN_CONTENT text/html\n{html}\nEVCXR_END_CONTENT")?;
    stdout.flush()
}
