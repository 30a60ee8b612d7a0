//! SHA-256 digests of bytes, files and values.

use std::{fmt, fs::File, io::Read, path::Path};

use autobwd_core::{DType, Error, ErrorKind, Result, Tensor, half::bf16, half::f16, tensor::open_file};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

/// The largest file of a record, in bytes.
const FILE_LIMIT: u64 = 1 << 40;
/// The bytes of a file that are in memory at a time.
const BUFFER: usize = 1 << 16;
/// The hexadecimal digits of a short digest.
const SHORT: usize = 16;

/// A SHA-256 digest; as text 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Digest([u8; 32]);

impl Digest {
    /// The digest of several byte strings, one after the other.
    pub(crate) fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Digest {
        let mut hash = Sha256::new();
        parts.into_iter().for_each(|part| hash.update(part));
        Digest(hash.finalize().into())
    }

    /// The digest of a file.
    ///
    /// # Errors
    /// The errors of the file system, with the path; a path that is no file.
    pub(crate) fn of_file(path: &Path) -> Result<Digest> {
        let mut file = open_file(path, FILE_LIMIT)?;
        let (mut hash, mut buffer) = (Sha256::new(), vec![0; BUFFER]);
        loop {
            match next(&mut file, path, &mut buffer)? {
                [] => return Ok(Digest(hash.finalize().into())),
                part => hash.update(part),
            }
        }
    }

    /// The digest of a value: of its dtype and shape as text, a newline, and its elements, little-endian. Every NaN
    /// counts as the same one, because the arithmetic does not promise its payload.
    pub(crate) fn of_value(value: &Tensor) -> Result<Digest> {
        let meta = format!("{} {:?}\n", value.dtype().name(), value.dims());
        let of = |elements: &[u8]| Digest::of([meta.as_bytes(), elements]);
        Ok(match canonical_nans(value)? {
            None => of(value.bytes()),
            Some(canonical) => of(canonical.bytes()),
        })
    }

    /// The first digits, which tell the values of a step from others.
    pub(crate) fn short(&self) -> String {
        let mut digits = self.to_string();
        digits.truncate(SHORT);
        digits
    }

    fn from_hexadecimal(text: &str) -> Option<Digest> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = match text.as_bytes().as_chunks() {
            (pairs, []) => pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect(),
            _ => None,
        };
        Some(Digest(bytes?.try_into().ok()?))
    }
}

/// The next bytes of a file; none at its end.
fn next<'a>(file: &mut File, path: &Path, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
    let count = file.read(buffer).map_err(|e| {
        Error::new(ErrorKind::Io, format!("cannot read `{}`: {e}", path.display())).caused_by(e)
    })?;
    Ok(buffer.get(..count).unwrap_or_default())
}

/// A copy of a value with one NaN in place of all, if it has any.
fn canonical_nans(value: &Tensor) -> Result<Option<Tensor>> {
    macro_rules! canonical {
        ($T:ty) => {{
            if !value.slice::<$T>()?.iter().any(|x| x.is_nan()) {
                return Ok(None);
            }
            let mut copy = value.clone();
            copy.slice_mut::<$T>()?.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = <$T>::NAN);
            Ok(Some(copy))
        }};
    }
    match value.dtype() {
        DType::F16 => canonical!(f16),
        DType::BF16 => canonical!(bf16),
        DType::F32 => canonical!(f32),
        DType::F64 => canonical!(f64),
        DType::Bool | DType::U8 | DType::I32 | DType::I64 => Ok(None),
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        Digest::from_hexadecimal(&text)
            .ok_or_else(|| de::Error::custom("a digest has 64 hexadecimal digits, in lower case"))
    }
}
