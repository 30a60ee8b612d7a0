//! Saved executables: the plugin's bytes, and what it needs to be sure that it can run them.

use autobwd::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::{Client, Executable, signature};

const MAGIC: &[u8] = b"autobwd-xla executable 1\n";

impl Executable {
    /// The compiled program as bytes, which [`Client::load_executable`] loads without compiling. They are valid for the
    /// same platform in the same version.
    ///
    /// # Errors
    /// The plugin's.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let parameters: Vec<String> = self.parameters().iter().map(ToString::to_string).collect();
        let mut bytes = MAGIC.to_vec();
        bytes.extend([0; 8]);
        let parts =
            [platform(self.client()).into_bytes(), parameters.join(", ").into_bytes(), self.serialize()?];
        for part in parts {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part);
        }
        let content = MAGIC.len() + 8;
        let hash = xxh3_64(&bytes[content..]).to_le_bytes();
        bytes[MAGIC.len()..content].copy_from_slice(&hash);
        Ok(bytes)
    }

    pub(super) fn from_bytes(client: &Client, bytes: &[u8]) -> Result<Executable> {
        let wrong = |why: &str| Error::new(ErrorKind::Format, format!("cannot load the executable: {why}"));
        let rest =
            bytes.strip_prefix(MAGIC).ok_or_else(|| wrong("it was not saved by this version of autobwd"))?;
        let damaged = || wrong("the bytes are damaged");
        let (hash, mut rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
        // The plugin does not check machine code.
        if u64::from_le_bytes(*hash) != xxh3_64(rest) {
            return Err(damaged());
        }
        let mut part = || {
            let (length, content) = rest.split_first_chunk::<8>()?;
            let (part, after) =
                content.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
            rest = after;
            Some(part)
        };
        let (compiled_for, parameters, executable) =
            (part().ok_or_else(damaged)?, part().ok_or_else(damaged)?, part().ok_or_else(damaged)?);
        let own = platform(client);
        if compiled_for != own.as_bytes() {
            let compiled_for = String::from_utf8_lossy(compiled_for);
            return Err(wrong(&format!("it was compiled for {compiled_for}, and this client is {own}")));
        }
        let parameters = std::str::from_utf8(parameters).map_err(|_| damaged())?;
        Executable::deserialize(client, executable, signature::parameters_of(parameters)?)
    }
}

/// The platform and its version.
fn platform(client: &Client) -> String {
    format!("{} ({})", client.platform_name(), client.platform_version())
}
