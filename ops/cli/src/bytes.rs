//! Numbers of bytes in arguments.

use autobwd::{Error, ErrorKind, Result};

/// Bytes, with an optional unit: `64MB`, `1.5GB`.
///
/// ```
/// assert_eq!(autobwd_cli::parse_bytes("1.5KB")?, 1500);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Another text; more bytes than a file or a memory has.
pub fn parse_bytes(text: &str) -> Result<usize> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => Some(1.0),
        "KB" => Some(1e3),
        "MB" => Some(1e6),
        "GB" => Some(1e9),
        _ => None,
    };
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit());
    let bytes = digits
        .parse::<f64>()
        .ok()
        .filter(|_| is_number)
        .zip(unit)
        .map(|(number, unit)| (number * unit).round());
    bytes.filter(|bytes| *bytes < (1_u64 << 53) as f64).map(|bytes| bytes as usize).ok_or_else(|| {
        let text = format!("`{text}` is no number of bytes, such as `64MB` or `1.5GB`");
        Error::new(ErrorKind::Budget, text)
    })
}
