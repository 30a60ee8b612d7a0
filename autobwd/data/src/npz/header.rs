//! The header of a `.npy` file: magic, version, length, and a Python dictionary
//! `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`, which NumPy always writes with these keys.

use std::io::Read;

use autobwd_core::DType;

use super::DTYPES;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Elements start at a multiple of this number of bytes.
const ALIGNMENT: usize = 64;
/// The limit of NumPy, which also keeps headers below the 64 KiB of version 1.
const MAX_RANK: usize = 64;
/// The longest header that is read, in bytes.
const LIMIT: u32 = 1 << 16;

#[derive(Debug, PartialEq)]
pub(super) struct Header {
    pub(super) dtype: DType,
    pub(super) dims: Vec<usize>,
    pub(super) is_column_major: bool,
}

impl Header {
    pub(super) fn read(from: &mut impl Read) -> Result<Header, String> {
        let mut fixed = [0; 8];
        from.read_exact(&mut fixed).map_err(|e| e.to_string())?;
        let (magic, version) = fixed.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err("not an npy file".into());
        }
        // Version 1 has 2 bytes for the length, the others have 4.
        let mut length = [0; 4];
        let used = if version[0] == 1 { &mut length[..2] } else { &mut length[..] };
        from.read_exact(used).map_err(|e| e.to_string())?;
        let length = u32::from_le_bytes(length);
        if length > LIMIT {
            return Err(format!("a header of {length} bytes; at most {LIMIT} are read"));
        }
        let mut text = vec![0; length as usize];
        from.read_exact(&mut text).map_err(|e| e.to_string())?;
        Header::parse(&String::from_utf8_lossy(&text))
    }

    fn parse(text: &str) -> Result<Header, String> {
        let value = |key: &str| {
            let (_, after) =
                text.split_once(&format!("'{key}':")).ok_or(format!("its header has no `{key}`"))?;
            Ok::<_, String>(after.trim_start())
        };
        let descr = value("descr")?;
        let name = descr.strip_prefix('\'').and_then(|rest| rest.split('\'').next()).unwrap_or(descr);
        let known = DTYPES.iter().find(|(_, known)| *known == name);
        let (dtype, _) = known.ok_or_else(|| {
            let known = DType::ALL.map(DType::name).join(", ");
            format!("dtype `{}` is not known; convert it to one of {known}", name.trim_end())
        })?;
        let is_column_major = value("fortran_order")?.starts_with("True");
        let shape = value("shape")?.strip_prefix('(').and_then(|rest| rest.split(')').next());
        let dims = shape.unwrap_or("?").split(',').map(str::trim).filter(|dim| !dim.is_empty());
        let dims = dims.map(str::parse).collect::<Result<_, _>>();
        let dims = dims.map_err(|_| "its header has no valid `shape`".to_string())?;
        Ok(Header { dtype: *dtype, dims, is_column_major })
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let rank = self.dims.len();
        if rank > MAX_RANK {
            return Err(format!("{rank} dimensions; arrays of NumPy have at most {MAX_RANK}"));
        }
        let descr = DTYPES.iter().find(|(dtype, _)| *dtype == self.dtype).map_or("", |(_, descr)| descr);
        let order = if self.is_column_major { "True" } else { "False" };
        let dims: String = self.dims.iter().map(|dim| format!("{dim}, ")).collect();
        let mut text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({dims}), }}");
        let fixed = MAGIC.len() + 4;
        let padding = (fixed + text.len() + 1).next_multiple_of(ALIGNMENT) - (fixed + text.len() + 1);
        text.extend(std::iter::repeat_n(' ', padding).chain(['\n']));
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_written() {
        for dims in [vec![], vec![3], vec![2, 0, 4]] {
            let header = Header { dtype: DType::I64, dims, is_column_major: true };
            let bytes = header.to_bytes().unwrap();
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            assert_eq!(Header::read(&mut &bytes[..]).unwrap(), header);
        }
    }

    #[test]
    fn other_headers_are_refused() {
        let many = Header { dtype: DType::F32, dims: vec![1; 65], is_column_major: false };
        assert!(many.to_bytes().unwrap_err().starts_with("65 dimensions"));
        let refused = |text: &str| Header::parse(text).unwrap_err();
        assert!(refused("{'descr': '<c8', 'fortran_order': False, 'shape': ()}").starts_with("dtype `<c8`"));
        assert!(refused("{'descr': [('a', '<f4')], 'shape': ()}").starts_with("dtype `[('a'"));
        assert!(refused("{}").contains("no `descr`"));
        assert!(refused("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}").contains("`shape`"));
    }
}
